"""A projector without weights: the words of a file decide its result."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence

import numpy as np

from specd.engine.backend import DecodeFailed
from specd.engine.media import Media, Part, Rows
from specd.errors import InvalidRequest
from tests.fakes.backend import WIDTH


class FakeProjector:
    """The file "5 cat" is five embeddings between the tokens 40 and 41, "2 3 dog" are two runs.

    If it gets a context size, a file takes at most half of it.
    "bad" is no image; one whose last word is "broken" cannot be encoded until it `is_mended`.  What
    is encoded waits while `gate` is closed.
    """

    width = WIDTH

    def __init__(self, max_files: int | None = None) -> None:
        self.max_files = max_files
        self.n_read = self.n_encoded = 0
        self.is_mended = False
        self.gate = threading.Event()
        self.gate.set()

    def parts(self, data: bytes, n_ctx: int = 0) -> Sequence[Part]:
        self.n_read += 1
        *lengths, _ = data.decode().split()
        if not lengths:
            raise InvalidRequest("an image cannot be read: it is bad")
        if n_ctx and sum(map(int, lengths)) > n_ctx // 2:
            data, lengths = data + b" small", [str(n_ctx // 2)]
        runs = [_run(data, at, int(length)) for at, length in enumerate(lengths)]
        return [40, *runs, 41]

    def encode(self, media: Media) -> Rows:
        assert self.gate.wait(timeout=10)
        self.n_encoded += 1
        if str(media.source).endswith("broken") and not self.is_mended:
            raise DecodeFailed("made to fail")
        return np.zeros((media.n_tokens, WIDTH), np.float32)


def _run(data: bytes, at: int, n_tokens: int) -> Media:
    key = hashlib.sha256(data + bytes([at])).digest()
    token = -1 - int.from_bytes(key[:4])
    return Media(token=token, n_tokens=n_tokens, n_positions=n_tokens, source=data.decode())
