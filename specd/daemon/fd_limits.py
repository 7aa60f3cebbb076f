"""File descriptors: how many there are, what they are for, and none being left."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import time
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger(__name__)

#: As Go's servers do, up to so many: one connection needs one, an engine a handful.
MAX_DESCRIPTORS: Final = 65_536
_MAX_CONNECTIONS: Final = 32_768
#: For engines and files, where there are few descriptors in all.
_MIN_RESERVE: Final = 256
#: Whoever is answered already waits as long as it takes to let them in.
_MAX_ACCEPT_BACKLOG: Final = 64
_LOG_INTERVAL_S: Final = 60.0


def raise_limit() -> int:
    """As many file descriptors as this process may have, up to MAX_DESCRIPTORS; how many it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError) as error:  # macOS has a lower limit that it does not tell
        log.debug("no more than %d file descriptors are to be had: %s", soft, error)
        return soft
    return target


def max_connections(n_descriptors: int) -> int:
    """The rest is for engines, models and pulls."""
    return min(n_descriptors - _reserve(n_descriptors), _MAX_CONNECTIONS)


def accept_backlog(n_descriptors: int) -> int:
    """How many connections may be accepted before any of them is refused."""
    return max(1, min(_MAX_ACCEPT_BACKLOG, _reserve(n_descriptors) // 4))


def _reserve(n_descriptors: int) -> int:
    return max(n_descriptors // 4, min(_MIN_RESERVE, n_descriptors // 2))


class LogRateLimiter:
    """Whether something may be said again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at = -math.inf

    def __call__(self) -> bool:
        now = self._clock()
        if now < self._logged_at + _LOG_INTERVAL_S:
            return False
        self._logged_at = now
        return True


def rate_limit_accept_errors() -> None:
    """One line for what asyncio says a thousand times a second while no descriptor is left."""
    may_log = LogRateLimiter()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message", ""))
        if message.startswith("socket.accept() out of system resource"):
            if may_log():
                log.warning("no connection can be accepted now: %s", context.get("exception"))
        elif "_start_serving" not in message:  # a retry, after the socket was closed
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
