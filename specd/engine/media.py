"""Images and sounds of prompts: their embeddings, and the cache that encodes them once.

Among a slot's tokens, each run of embeddings is one negative number, repeated.  Equal content has
an equal number, so prefixes compare as they do for text.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from specd.core import TokenId

T = TypeVar("T")

#: Most bytes of cached embeddings, at four bytes per number: dozens of large images.
_MAX_BYTES = 256 * 2**20

#: Embeddings [n_tokens, width].
Rows = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Plane:
    """Positions [4, n_tokens] of an image that starts at position p: origin + p · moves."""

    origin: Positions
    moves: Positions

    def at(self, position: int) -> Positions:
        return self.origin + np.int32(position) * self.moves

    @property
    def extent(self) -> int:
        """Number of positions in the first dimension, the only one that the cache uses."""
        return int(self.origin[0].max()) + 1


@dataclass(slots=True, eq=False)
class Media:
    """One run of embeddings; a large image may have several.

    n_positions: positions that the run takes; fewer than n_tokens for an image in a plane.
    plane: None if each token has the next position.
    is_causal: whether its tokens attend only to those before them.
    source: input of the projector; None once `rows` is set.
    encoding: the running or finished work; only the loop uses it.
    """

    token: TokenId
    n_tokens: int
    n_positions: int
    plane: Plane | None = None
    is_causal: bool = True
    source: object = None
    rows: Rows | None = None
    encoding: Future[None] | None = None

    def positions(self, begin: int) -> Positions:
        """Return the positions of the tokens: [4, n_tokens] in a plane, else [1, n_tokens]."""
        if self.plane is not None:
            return self.plane.at(begin)
        return np.arange(begin, begin + self.n_tokens, dtype=np.int32)[np.newaxis]


#: A part of a file in a prompt: a token that the model puts around it, or embeddings.
Part = TokenId | Media


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt.  tokens: as a slot holds them.  media: by index of its first token, in order."""

    tokens: list[TokenId] = field(default_factory=list)
    media: dict[int, Media] = field(default_factory=dict)

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, Media):
                self.media[len(self.tokens)] = part
                self.tokens.extend([part.token] * part.n_tokens)
            else:
                self.tokens.append(part)


class Projector(Protocol):
    """The model that turns images and sounds into embeddings.  MediaCache's thread uses it."""

    #: Numbers per embedding.
    width: int
    #: Most files in one prompt; None: any number.
    max_files: int | None

    def parts(self, data: bytes, n_ctx: int = 0) -> Sequence[Part]:
        """Return the parts of a file.  Raises InvalidRequest if the model cannot read it.

        n_ctx: context of the prompt in tokens, in which the file should leave room; 0: a slot's.
        """
        ...

    def encode(self, media: Media) -> Rows:
        """Return the embeddings of a run.  Raises DecodeFailed."""
        ...


class MediaCache:
    """A cache of encoded files.  Only its own thread calls `parts`; the loop calls the rest."""

    def __init__(self, projector: Projector) -> None:
        self._projector = projector
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="media")
        self._entries: OrderedDict[tuple[bytes, int], Sequence[Part]] = OrderedDict()
        self._n_bytes = 0

    @property
    def max_files(self) -> int | None:
        return self._projector.max_files

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in the cache's thread, in order of submission."""
        return self._thread.submit(work)

    def encode(self, media: Media) -> Future[None]:
        """Start encoding, once; return the future, after which `media.rows` is set."""
        if media.encoding is None or media.encoding.cancelled():
            media.encoding = self._thread.submit(self._encode, media)
        return media.encoding

    def parts(self, data: bytes, n_ctx: int = 0) -> Sequence[Part]:
        """Return the parts of a file in a prompt of n_ctx tokens; 0: as many as a slot has.

        Raises InvalidRequest.
        """
        key = hashlib.sha256(data).digest(), n_ctx
        if (known := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
            return known
        parts = self._entries[key] = self._projector.parts(data, n_ctx)
        self._n_bytes += self._size(parts)
        while self._n_bytes > _MAX_BYTES and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            self._n_bytes -= self._size(oldest)
        return parts

    def _encode(self, media: Media) -> None:
        media.rows = self._projector.encode(media)
        media.source = None

    def _size(self, parts: Sequence[Part]) -> int:
        n_tokens = sum(part.n_tokens for part in parts if isinstance(part, Media))
        return 4 * self._projector.width * n_tokens
