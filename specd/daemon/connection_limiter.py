"""Limits the number of connections by file descriptors, and closes idle ones after a timeout.

At the limit, a new connection replaces the one that has been idle for the longest.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from specd.api.request_recorder import EARLY_ERRORS, EarlyErrors, is_recorded
from specd.daemon.connection import LINGER_S, Connection, handle_connection
from specd.daemon.fd_limits import LogRateLimiter
from specd.daemon.header_limits import HeaderBudget
from specd.daemon.socket_stall import SocketStall

log = logging.getLogger(__name__)

_Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: Checks for stalled clients within one client timeout.
_N_STALL_CHECKS: Final = 8


class LimitedAppRunner(web.AppRunner):
    """An aiohttp runner whose connections a `ConnectionLimiter` admits.

    limit: connections.  timeout_s: how long a client may send nothing of its request or read
    nothing of its answer; inf is forever.  options: those of `web.RequestHandler`.
    """

    def __init__(
        self, app: web.Application, *, limit: int, timeout_s: float, **options: Any
    ) -> None:
        super().__init__(app, **options)
        app.middlewares.insert(0, handle_connection)
        self._limit, self._timeout_s = limit, timeout_s
        self._options = options
        self._early_errors = app[EARLY_ERRORS]

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return ConnectionLimiter(
            server,
            self._early_errors,
            limit=self._limit,
            timeout_s=self._timeout_s,
            options=self._options,
        )


class ConnectionLimiter(web.Server):
    """An aiohttp server that limits connections and passes requests on to `server`'s handler.

    early_errors: answers requests that the application never sees.
    """

    def __init__(
        self,
        server: web.Server,
        early_errors: EarlyErrors,
        *,
        limit: int,
        timeout_s: float,
        options: dict[str, Any],
    ) -> None:
        super().__init__(
            _catch_early_errors(server.request_handler, early_errors),
            request_factory=server.request_factory,
            handler_cancellation=server.handler_cancellation,
        )
        self._limit = limit
        self.early_errors = early_errors
        self.timeout_s = timeout_s
        self.header_budget = HeaderBudget()
        # aiohttp's timer of idle connections also covers unfinished headers.
        finite_s = timeout_s if math.isfinite(timeout_s) else 10.0 * 365 * 24 * 3600
        of_server = {"shutdown_timeout", "handler_cancellation"}
        self._options = {k: v for k, v in options.items() if k not in of_server}
        self._options |= {"keepalive_timeout": finite_s}
        self._n = 0
        self._idle: dict[Connection, None] = {}  # waiting for the client; the longest idle first
        self._lingering: deque[float] = deque()
        self._may_log_full = LogRateLimiter()
        self._stalls: dict[Connection, SocketStall] = {}
        if math.isfinite(timeout_s):
            self._schedule_stall_check()

    def _schedule_stall_check(self) -> None:
        asyncio.get_running_loop().call_later(self.timeout_s / _N_STALL_CHECKS, self._check_stalls)

    def _check_stalls(self) -> None:
        """Close connections whose client has read nothing of its answer for `timeout_s`."""
        now = asyncio.get_running_loop().time()
        for connection, stall in list(self._stalls.items()):
            if stall.stalled_s(now) >= self.timeout_s:
                log.info(
                    "closing a connection: the client read nothing of its answer for %.0f s",
                    self.timeout_s,
                )
                connection.abort_connection()
        self._schedule_stall_check()

    def __call__(self) -> web.RequestHandler:
        return Connection(self, loop=asyncio.get_running_loop(), **self._options)

    def admit(self, connection: Connection) -> bool:
        if self._n >= self._limit and not self._evict_idle():
            return False
        self._n += 1
        self._idle[connection] = None
        return True

    def add_connection(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._stalls[connection] = SocketStall(transport)

    def remove_connection(self, connection: Connection) -> None:
        self._stalls.pop(connection, None)

    def _evict_idle(self) -> bool:
        candidate = next((connection for connection in self._idle if connection.can_evict), None)
        if self._may_log_full():
            action = "none is idle: refusing new ones" if candidate is None else "closing idle ones"
            log.warning("the limit of %d connections is reached; %s", self._n, action)
        if candidate is None:
            return False
        candidate.evict()
        return True

    def may_linger(self) -> bool:
        """Return whether a refused connection may keep its file descriptor for `LINGER_S`."""
        now = asyncio.get_running_loop().time()
        while self._lingering and self._lingering[0] <= now:
            self._lingering.popleft()
        if len(self._lingering) > self._limit // 8:
            return False
        self._lingering.append(now + LINGER_S)
        return True

    def mark_active(self, connection: Connection) -> None:
        if connection in self._idle:
            self.set_idle(connection, idle=True)

    def set_idle(self, connection: Connection, *, idle: bool) -> None:
        self._idle.pop(connection, None)
        if idle:
            self._idle[connection] = None

    def release_slot(self, connection: Connection) -> None:
        self._n -= 1
        self._idle.pop(connection, None)


def _catch_early_errors(handler: _Handle, early_errors: EarlyErrors) -> _Handle:
    """Record errors raised before the middlewares run, such as an unmet expectation (417)."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as answer:
            if is_recorded(request):
                raise
            return early_errors.refuse(request, answer.status)

    return handle
