"""Threads for file operations, so that a slow disk or a foreign lock delays no other request.

The event loop's default threads serve all requests and must not wait.
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
    """Thread pools for one store, started on first use.

    name: prefix of the threads' names.
    """

    def __init__(self, name: str) -> None:
        self._many = ThreadPoolExecutor(_N_THREADS, thread_name_prefix=name)
        # Exclusive work runs one at a time, so one thread is enough.
        self._one = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-change")

    async def do(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return its result; if cancelled, wait until it has finished.

        Otherwise the caller might close a descriptor that the thread still writes to.
        """
        job = self._many.submit(work)
        running = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not job.cancel():  # it has begun
                await _wait_until_done(running)
            raise

    async def run_exclusive(self, work: Callable[[], T], lock_timeout_s: float) -> T:
        """Run `work` after all earlier exclusive work and return its result.

        Raises StoreError if it has not begun within `lock_timeout_s`.  Cancellation does not stop
        work that has begun.
        """
        job = self._one.submit(work)
        running = asyncio.wrap_future(job)
        try:
            await asyncio.wait({running}, timeout=lock_timeout_s)
            if job.cancel():  # it has not begun
                raise StoreError("cannot change the store: other changes take too long; try again")
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
        running.exception()  # mark it as retrieved
