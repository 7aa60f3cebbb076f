"""Threads for files, so that no slow disk and no lock of another process holds up anything else.

The event loop's own threads answer every other request: nothing waits in them for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from specd.errors import StoreError

T = TypeVar("T")

_N_THREADS: Final = 4


class FileThreads:
    """name: of the threads.  They are started when they are needed."""

    def __init__(self, name: str) -> None:
        self._many = ThreadPoolExecutor(_N_THREADS, thread_name_prefix=name)
        # What waits for a lock that one at a time can have needs no more than one.
        self._one = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-change")

    async def do(self, work: Callable[[], T]) -> T:
        """The result of `work`.  Cancelled, it returns only when the thread has let go of the file.

        A descriptor that is closed under a thread may be another file's by the time it writes.
        """
        job = self._many.submit(work)
        running = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not job.cancel():  # else it had not begun
                await _wait_until_done(running)
            raise

    async def run_exclusive(self, work: Callable[[], T], lock_timeout_s: float) -> T:
        """The result of `work`, when nothing else that was given here runs any more.

        Raises StoreError where its turn has not come by then.  Cancelled, it leaves work that has
        begun to itself.
        """
        job = self._one.submit(work)
        running = asyncio.wrap_future(job)
        try:
            await asyncio.wait({running}, timeout=lock_timeout_s)
            if job.cancel():  # it has not begun
                raise StoreError("cannot change the store: other changes of it take too long")
            return await running
        finally:
            running.cancel()  # and the job, if it has not begun

    def close(self) -> None:
        for threads in (self._many, self._one):
            threads.shutdown(wait=False, cancel_futures=True)


async def _wait_until_done(running: asyncio.Future[T]) -> None:
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            continue
    if not running.cancelled():
        running.exception()  # seen
