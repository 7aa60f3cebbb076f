"""Connections: no more than there are file descriptors for, and none that is waited for for ever.

Who is silent gives way to who speaks: where no descriptor is left for another connection, the one
is closed that has owed a request, or the rest of one, for the longest.  What HTTP is, is aiohttp's
business.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import resource
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

log = logging.getLogger(__name__)

#: As Go's servers do, up to so many: one connection needs one, an engine a handful.
MAX_DESCRIPTORS: Final = 65_536
_MAX_CONNECTIONS: Final = 32_768
#: For engines and files, where there are few descriptors in all.
_LEAST_RESERVE: Final = 256
_MAX_BACKLOG: Final = 4096
#: Who is refused reads why, while what was sent meanwhile is thrown away.
_LINGER_S: Final = 1.0
#: A client that is gone without a word is asked for a sign of life (seconds).
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S = 60, 15
_SAY_AGAIN_S: Final = 60.0

_SORRY: Final = b'{"error":"server busy: it has no room for more connections"}'
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Type: application/json; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_SORRY), _SORRY)


def raise_limit() -> int:
    """As many file descriptors as this process may have, up to MAX_DESCRIPTORS; how many it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has a lower limit that it does not tell
        log.debug("no more than %d file descriptors are to be had: %s", soft, error)
        return soft
    return wanted


def max_connections(n_descriptors: int) -> int:
    """The rest is for engines, models and pulls."""
    return min(n_descriptors - _reserve(n_descriptors), _MAX_CONNECTIONS)


def backlog(n_descriptors: int) -> int:
    """How many may connect while nobody accepts, as during a restart; the kernel has the last word.

    asyncio accepts as many at once, before any can be refused.
    """
    return max(1, min(_MAX_BACKLOG, _reserve(n_descriptors) // 4))


def _reserve(n_descriptors: int) -> int:
    return max(n_descriptors // 4, min(_LEAST_RESERVE, n_descriptors // 2))


class Runner(web.AppRunner):
    """An application behind a `Door`.

    timeout_s: how long a client may say nothing while it owes a request or the rest of one, or
    take nothing of its answer; inf is for ever.  options: those of `web.RequestHandler`.
    """

    def __init__(
        self, app: web.Application, *, limit: int, timeout_s: float, **options: Any
    ) -> None:
        super().__init__(app, **options)
        app.middlewares.insert(0, _attended)
        self._limit, self._timeout_s = limit, timeout_s
        self._options = options

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return Door(server, limit=self._limit, timeout_s=self._timeout_s, options=self._options)


class Door(web.Server):
    """Takes the place of `server`, whose requests are answered as before."""

    def __init__(
        self, server: web.Server, *, limit: int, timeout_s: float, options: dict[str, Any]
    ) -> None:
        super().__init__(
            server.request_handler,
            request_factory=server.request_factory,
            handler_cancellation=server.handler_cancellation,
        )
        self._limit = limit
        self.timeout_s = timeout_s
        # aiohttp's timer of idle connections is that of unfinished headers, too.
        finite_s = timeout_s if math.isfinite(timeout_s) else 10.0 * 365 * 24 * 3600
        of_server = {"shutdown_timeout", "handler_cancellation"}
        self._options = {k: v for k, v in options.items() if k not in of_server}
        self._options |= {"keepalive_timeout": finite_s}
        self._n = 0
        self._idle: dict[Visitor, None] = {}  # we wait for them; the longest silent come first
        self._lingering: deque[float] = deque()
        self._said_full = _Seldom()

    def __call__(self) -> web.RequestHandler:
        return Visitor(self, loop=asyncio.get_running_loop(), **self._options)

    def lets_in(self, visitor: Visitor) -> bool:
        if self._n >= self._limit and not self._make_room():
            return False
        self._n += 1
        self._idle[visitor] = None
        return True

    def _make_room(self) -> bool:
        leaves = next((visitor for visitor in self._idle if visitor.can_leave), None)
        if self._said_full():
            give_way = (
                "all of them at work: no more are let in" if leaves is None else "idle ones go"
            )
            log.warning("%d connections are open, %s", self._n, give_way)
        if leaves is None:
            return False
        leaves.leave()
        return True

    def may_linger(self) -> bool:
        """Whether who is refused may have a descriptor for another moment."""
        now = asyncio.get_running_loop().time()
        while self._lingering and self._lingering[0] <= now:
            self._lingering.popleft()
        if len(self._lingering) > self._limit // 8:
            return False
        self._lingering.append(now + _LINGER_S)
        return True

    def heard(self, visitor: Visitor) -> None:
        if visitor in self._idle:
            self.set_idle(visitor, idle=True)

    def set_idle(self, visitor: Visitor, *, idle: bool) -> None:
        self._idle.pop(visitor, None)
        if idle:
            self._idle[visitor] = None

    def gone(self, visitor: Visitor) -> None:
        self._n -= 1
        self._idle.pop(visitor, None)


class Visitor(web.RequestHandler):
    """One connection."""

    __slots__ = ("_body_timer", "_door", "_heard_at", "_is_inside", "_request")

    def __init__(self, door: Door, **options: Any) -> None:
        super().__init__(door, **options)
        self._door = door
        self._is_inside = False
        self._request: web.BaseRequest | None = None
        self._heard_at = 0.0
        self._body_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._is_inside = self._door.lets_in(self)
        if self._is_inside:
            super().connection_made(transport)
            _ask_for_signs_of_life(transport.get_extra_info("socket"), self._door.timeout_s)
        else:
            self._refuse(cast("asyncio.Transport", transport))

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Not closed at once: a reset would answer what the client sends, and the words be lost."""
        transport.write(_FULL)
        if self._door.may_linger():
            transport.write_eof()
            self._loop.call_later(_LINGER_S, transport.close)
        else:
            transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_body_timer()
        self._step_outside()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_inside:
            self._heard_at = self._loop.time()
            self._door.heard(self)
            super().data_received(data)

    @property
    def can_leave(self) -> bool:
        """Not while something of an answer is still to go out."""
        return self.transport is not None and not self.transport.get_write_buffer_size()

    def leave(self) -> None:
        # The transport takes a while to close: its place is given away now.
        self._step_outside()
        self.force_close()

    def _step_outside(self) -> None:
        if self._is_inside:
            self._is_inside = False
            self._door.gone(self)

    # ------------------------------------------------------------------ one request

    def begin(self, request: web.BaseRequest) -> None:
        self._request = request
        if not request.content.is_eof() and math.isfinite(self._door.timeout_s):
            self._heard_at = self._loop.time()
            self._set_body_timer()
        request.content.on_eof(functools.partial(self._has_all_of, request))

    def _has_all_of(self, request: web.BaseRequest) -> None:
        """From now on it is we whom the client waits for."""
        if self._request is request:
            self._stop_body_timer()
            if self._is_inside:
                self._door.set_idle(self, idle=False)

    def end(self) -> None:
        self._stop_body_timer()
        self._request = None
        if self._is_inside:
            self._door.set_idle(self, idle=True)

    def _set_body_timer(self) -> None:
        self._body_timer = self._loop.call_at(
            self._heard_at + self._door.timeout_s, self._check_body
        )

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _check_body(self) -> None:
        if self.transport is None:
            return
        now = self._loop.time()
        if not self.transport.is_reading():  # it is we who are slow
            self._heard_at = now
        if now >= self._heard_at + self._door.timeout_s:
            log.info("the rest of a request has not come for %.0f s", self._door.timeout_s)
            self.force_close()
        else:
            self._set_body_timer()


@web.middleware
async def _attended(request: web.Request, handler: Handler) -> web.StreamResponse:
    visitor = request.protocol
    if not isinstance(visitor, Visitor):
        return await handler(request)
    visitor.begin(request)
    try:
        return await handler(request)
    finally:
        visitor.end()


def _ask_for_signs_of_life(sock: socket.socket | None, timeout_s: float) -> None:
    """From the kernel: it knows what the other side takes, to the byte.  aiohttp set SO_KEEPALIVE.

    TCP_USER_TIMEOUT ends a connection whose client takes nothing, whether it is gone or stands
    still with full buffers (Linux alone).
    """
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    options = {
        "TCP_KEEPIDLE": _KEEPALIVE_IDLE_S,
        "TCP_KEEPINTVL": _KEEPALIVE_INTERVAL_S,
    }
    if math.isfinite(timeout_s):
        options["TCP_USER_TIMEOUT"] = min(int(timeout_s * 1000), 2**31 - 1)
    for name, value in options.items():
        number = getattr(socket, name, None)
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)


# --------------------------------------------------------------------------- no descriptor left


class _Seldom:
    """Whether something may be said again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at = -math.inf

    def __call__(self) -> bool:
        now = self._clock()
        if now < self._said_at + _SAY_AGAIN_S:
            return False
        self._said_at = now
        return True


def quiet_about_accept() -> None:
    """One line for what asyncio says a thousand times a second while no descriptor is left."""
    said = _Seldom()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message", ""))
        if message.startswith("socket.accept() out of system resource"):
            if said():
                log.warning("no connection can be accepted now: %s", context.get("exception"))
        elif "_start_serving" not in message:  # a retry, after the socket was closed
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
