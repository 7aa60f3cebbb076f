"""Images and sounds of prompts, encoded in a thread of their own and cached for the next turn.

While an image is encoded, the loop continues with all other slots.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from specd.engine.media import Media, Part, Projector

#: Most bytes of cached embeddings, at four bytes per number: dozens of large images.
_MAX_BYTES = 256 * 2**20

T = TypeVar("T")


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
