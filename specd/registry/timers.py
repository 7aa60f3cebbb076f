"""Time, as transfers wait: a test puts its own in place of this."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class TransferTimers:
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def watch(self, seconds: float) -> AsyncIterator[Callable[[], None]]:
        """Raises TimeoutError where what it is given has not been called for so long."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds) as limit:
            yield lambda: limit.reschedule(loop.time() + seconds)
