"""File descriptors: raises the limit, divides them, and limits log lines when none are left."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import time
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger(__name__)

#: The limit is raised up to here, as Go's servers do.  A connection needs one, an engine a few.
MAX_DESCRIPTORS: Final = 65_536
_MAX_CONNECTIONS: Final = 32_768
#: Reserved for engines and files if the limit is low.
_MIN_RESERVE: Final = 256
#: Connections accepted in a row; running answers wait meanwhile.
_MAX_ACCEPT_BACKLOG: Final = 64
_LOG_INTERVAL_S: Final = 60.0


def raise_limit() -> int:
    """Raise the limit of file descriptors up to MAX_DESCRIPTORS; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError) as error:  # macOS has a lower limit that it does not report
        log.debug("cannot raise the limit of %d file descriptors: %s", soft, error)
        return soft
    return target


def max_connections(n_descriptors: int) -> int:
    """Return how many connections may be open; the rest is for engines, models and pulls."""
    return min(n_descriptors - _reserve(n_descriptors), _MAX_CONNECTIONS)


def accept_backlog(n_descriptors: int) -> int:
    """Return how many connections may be accepted in a row before any of them is refused."""
    return max(1, min(_MAX_ACCEPT_BACKLOG, _reserve(n_descriptors) // 4))


def _reserve(n_descriptors: int) -> int:
    return max(n_descriptors // 4, min(_MIN_RESERVE, n_descriptors // 2))


class LogRateLimiter:
    """A rate limiter for one log line; calling it returns whether to log now."""

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
    """Log one line a minute for an error that asyncio repeats while no file descriptor is left."""
    may_log = LogRateLimiter()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message", ""))
        if message.startswith("socket.accept() out of system resource"):
            if may_log():
                log.warning("cannot accept connections now: %s", context.get("exception"))
        elif "_start_serving" not in message:  # a retry after the socket was closed
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
