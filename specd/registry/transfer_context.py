"""What every transfer works with, handed on in one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specd.registry.timers import TransferTimers
from specd.store import StoreWriter
from specd.store.file_threads import FileThreads


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Into how many parts a blob is cut, and how large they are at least and at most: Ollama's.

    span: what one connection fetches in one request.  Bytes.
    """

    n_download_parts: int = 16
    n_upload_parts: int = 64
    min_part: int = 100 * 10**6
    max_part: int = 1000 * 10**6
    span: int = 16 * 2**20

    def download_part(self, total: int) -> int:
        return min(max(total // self.n_download_parts, self.min_part), self.max_part)

    def upload_part(self, total: int) -> int:
        return min(max(total // self.n_upload_parts, self.min_part), self.max_part)


def _ignore_bytes(n_bytes: int) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Who is told of the bytes of blobs, as they come and go."""

    received: Callable[[int], None] = _ignore_bytes
    sent: Callable[[int], None] = _ignore_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferContext:
    writer: StoreWriter
    disk: FileThreads
    timers: TransferTimers
    sizes: Sizes
    traffic: Traffic = Traffic()
