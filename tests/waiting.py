"""Wait by polling: for another process's state, or for a line of a log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def wait_until(
    holds: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 60, every_s: float = 0.01
) -> None:
    """Return once the condition holds; raise TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(every_s)
