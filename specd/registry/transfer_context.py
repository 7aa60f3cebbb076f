"""The shared resources of all transfers: store, threads, timers, part sizes, traffic counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from specd.store import StoreWriter
from specd.store.file_threads import FileThreads


class TransferTimers:
    """Sleeps and timeouts of transfers; tests replace it."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def watch(self, seconds: float) -> AsyncIterator[Callable[[], None]]:
        """Raise TimeoutError if the yielded function is not called for `seconds`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds) as limit:
            yield lambda: limit.reschedule(loop.time() + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Number and size limits of a blob's parts, the same as Ollama's.  Sizes are bytes.

    span: bytes that one connection fetches in one request.
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
    """Callbacks that count the bytes of blobs as they are received and sent."""

    received: Callable[[int], None] = _ignore_bytes
    sent: Callable[[int], None] = _ignore_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferContext:
    """Shared resources of all transfers."""

    writer: StoreWriter
    disk: FileThreads
    timers: TransferTimers
    sizes: Sizes
    traffic: Traffic = Traffic()
