"""Threads for the files of transfers, so that a slow disk holds up nothing else of the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_N_THREADS: Final = 4


class Disk:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_N_THREADS, thread_name_prefix="registry")

    async def do(self, work: Callable[[], T]) -> T:
        """The result of `work`.  Cancelled, it returns only when the thread has let go of the file.

        A descriptor that is closed under a thread may be another file's by the time it writes.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await _settled(running)
            raise

    def close(self) -> None:
        self._threads.shutdown(wait=False)


async def _settled(running: asyncio.Future[T]) -> None:
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            continue
    if not running.cancelled():
        running.exception()  # seen
