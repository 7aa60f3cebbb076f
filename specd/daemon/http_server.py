"""The HTTP server: limits the number of connections, and closes those whose client stalls.

At the limit, a new connection replaces the one that has been idle for the longest.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aiohttp import web

from specd.api.request_recorder import EARLY_ERRORS, is_recorded
from specd.daemon.connection import LINGER_S, Connection
from specd.daemon.fd_limits import LogRateLimiter
from specd.daemon.header_limits import HeaderBudget

log = logging.getLogger(__name__)

#: Connections that the kernel queues, for instance during a restart; the kernel may lower it.
_KERNEL_BACKLOG: Final = 4096
#: Checks for stalled clients within one client timeout.
_N_STALL_CHECKS: Final = 8
#: Seconds from a client's connect to its first request, on a busy machine.
DRAIN_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 0.01
_FOREVER_S: Final = 10.0 * 365 * 24 * 3600


class HttpServer:
    """The server of an application.

    limit: connections.  timeout_s: how long a client may send nothing of its request or read
    nothing of its answer; inf is forever.  shutdown_timeout_s: for sending the ends of answers.
    options: those of `web.RequestHandler`.
    """

    def __init__(
        self,
        app: web.Application,
        *,
        limit: int,
        timeout_s: float,
        shutdown_timeout_s: float,
        **options: Any,
    ) -> None:
        # handler_cancellation: a client that disconnects ends its handler, which frees the slot.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=shutdown_timeout_s
        )
        self.early_errors = app[EARLY_ERRORS]
        self.header_budget = HeaderBudget()
        self.addresses: list[Any] = []
        self._limit = limit
        self._timeout_s = timeout_s
        # aiohttp's timer of idle connections also covers unfinished headers.
        self._options = options | {"keepalive_timeout": min(timeout_s, _FOREVER_S)}
        self._listeners: list[asyncio.Server] = []
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # the longest idle first; some may be answering
        self._lingering: deque[float] = deque()
        self._may_log_full = LogRateLimiter()
        self._stall_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ start and stop

    async def start(self, sockets: Iterable[socket.socket], *, accept_backlog: int = 64) -> None:
        """Serve on bound sockets.

        accept_backlog: connections that asyncio accepts in a row before other tasks run.
        """
        await self._runner.setup()
        manager = self._runner.server
        assert manager is not None
        handler = manager.request_handler
        manager.request_handler = lambda request: self._handle(handler, request)
        loop = asyncio.get_running_loop()
        for sock in sockets:
            self._listeners.append(
                await loop.create_server(
                    lambda: Connection(self, manager, **self._options),
                    sock=sock,
                    backlog=accept_backlog,
                )
            )
            sock.listen(_KERNEL_BACKLOG)
            self.addresses.append(sock.getsockname())
        if math.isfinite(self._timeout_s):
            self._close_stalled()

    def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def wait_for_first_requests(self, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Return once every open connection has sent a request, at the latest after `timeout_s`."""
        for _ in range(1 + int(timeout_s / _POLL_S)):
            # Also before the first check: asyncio may have accepted some that are not open yet.
            await asyncio.sleep(_POLL_S)
            if all(connection.has_sent_request for connection in self._open):
                return

    async def close(self) -> None:
        """Close all connections, after their answers were sent as far as the timeout allows."""
        self.stop_listening()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        await self._runner.cleanup()

    # ------------------------------------------------------------------ requests

    async def _handle(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        request: web.BaseRequest,
    ) -> web.StreamResponse:
        """Handle a request; record errors that occur before the middlewares, such as a 417."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin_request(request)
        try:
            return await handler(request)
        except web.HTTPException as answer:
            if is_recorded(request):
                raise
            return self.early_errors.refuse(request, answer.status)
        finally:
            connection.end_request()
            if connection in self._open:
                self._move_to_end(connection)

    # ------------------------------------------------------------------ connections

    @property
    def n_open(self) -> int:
        """The number of open connections, without refused ones."""
        return len(self._open)

    def admit(self, connection: Connection) -> bool:
        """Return whether the connection may stay; close an idle one if the limit is reached."""
        if self.n_open >= self._limit and not self._evict_idle():
            return False
        self._open.add(connection)
        self._idle[connection] = None
        return True

    def remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def mark_active(self, connection: Connection) -> None:
        """Make the connection the last one to evict."""
        if connection in self._idle:
            self._move_to_end(connection)

    def _move_to_end(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def _evict_idle(self) -> bool:
        candidate = self._longest_idle()
        if self._may_log_full():
            action = "none is idle: refusing new ones" if candidate is None else "closing idle ones"
            log.warning("the limit of %d connections is reached; %s", self.n_open, action)
        if candidate is None:
            return False
        self.remove(candidate)
        candidate.force_close()
        return True

    def _longest_idle(self) -> Connection | None:
        found, answering = None, []
        for connection in self._idle:
            if connection.is_answering:
                answering.append(connection)
            elif not connection.has_unsent_data:
                found = connection
                break
        for connection in answering:
            del self._idle[connection]  # it comes back at the end of its answer
        return found

    def may_linger(self) -> bool:
        """Return whether a refused connection may keep its file descriptor for `LINGER_S`."""
        now = asyncio.get_running_loop().time()
        while self._lingering and self._lingering[0] <= now:
            self._lingering.popleft()
        if len(self._lingering) > self._limit // 8:
            return False
        self._lingering.append(now + LINGER_S)
        return True

    def _close_stalled(self) -> None:
        """Check all connections, and again after a part of the timeout."""
        loop = asyncio.get_running_loop()
        for connection in list(self._open):
            connection.close_if_stalled(loop.time(), self._timeout_s)
        self._stall_timer = loop.call_later(self._timeout_s / _N_STALL_CHECKS, self._close_stalled)
