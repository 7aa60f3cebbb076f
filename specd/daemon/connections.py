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
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.typedefs import Handler

from specd.api.requests import UNSEEN, Unseen, is_seen
from specd.daemon.descriptors import Seldom

log = logging.getLogger(__name__)

_Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: `struct tcp_info` (linux/tcp.h), as far as tcpi_bytes_acked.
_TCP_INFO_BYTES, _BYTES_ACKED = 128, slice(120, 128)
#: Looks at who takes nothing, within the time that a client is waited for.
_N_LOOKS: Final = 8
#: Who is refused reads why, while what was sent meanwhile is thrown away.
_LINGER_S: Final = 1.0
#: A client that is gone without a word is asked for a sign of life (seconds).
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S = 60, 15

_SORRY: Final = b'{"error":"server busy: it has no room for more connections"}'
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Type: application/json; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_SORRY), _SORRY)


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
        self._unseen = app[UNSEEN]

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return Door(
            server,
            self._unseen,
            limit=self._limit,
            timeout_s=self._timeout_s,
            options=self._options,
        )


class Door(web.Server):
    """Takes the place of `server`, whose requests are answered as before.

    unseen: answers what its application does not get to see.
    """

    def __init__(
        self,
        server: web.Server,
        unseen: Unseen,
        *,
        limit: int,
        timeout_s: float,
        options: dict[str, Any],
    ) -> None:
        super().__init__(
            _all_seen(server.request_handler, unseen),
            request_factory=server.request_factory,
            handler_cancellation=server.handler_cancellation,
        )
        self._limit = limit
        self.unseen = unseen
        self.timeout_s = timeout_s
        # aiohttp's timer of idle connections is that of unfinished headers, too.
        finite_s = timeout_s if math.isfinite(timeout_s) else 10.0 * 365 * 24 * 3600
        of_server = {"shutdown_timeout", "handler_cancellation"}
        self._options = {k: v for k, v in options.items() if k not in of_server}
        self._options |= {"keepalive_timeout": finite_s}
        self._n = 0
        self._idle: dict[Visitor, None] = {}  # we wait for them; the longest silent come first
        self._lingering: deque[float] = deque()
        self._said_full = Seldom()
        self._connected: dict[Visitor, _Taking] = {}
        if math.isfinite(timeout_s):
            self._look_soon()

    def _look_soon(self) -> None:
        asyncio.get_running_loop().call_later(self.timeout_s / _N_LOOKS, self._look)

    def _look(self) -> None:
        """At those who have something to take."""
        now = asyncio.get_running_loop().time()
        for visitor, taking in list(self._connected.items()):
            if taking.for_s(now) >= self.timeout_s:
                log.info("a client took nothing of its answer for %.0f s", self.timeout_s)
                visitor.cut_off()
        self._look_soon()

    def __call__(self) -> web.RequestHandler:
        return Visitor(self, loop=asyncio.get_running_loop(), **self._options)

    def lets_in(self, visitor: Visitor) -> bool:
        if self._n >= self._limit and not self._make_room():
            return False
        self._n += 1
        self._idle[visitor] = None
        return True

    def connected(self, visitor: Visitor, transport: asyncio.Transport) -> None:
        self._connected[visitor] = _Taking(transport)

    def disconnected(self, visitor: Visitor) -> None:
        self._connected.pop(visitor, None)

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


class _Taking:
    """Since when a client has taken nothing of what lies ready for it."""

    __slots__ = ("_n_taken", "_since", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._n_taken = 0
        self._since = math.inf

    def for_s(self, now: float) -> float:
        """Seconds, as far as anybody has looked; below zero for one that owes nothing."""
        if not self._transport.get_write_buffer_size():
            self._since = math.inf
            return -math.inf
        n_taken = _n_taken(self._transport)
        if n_taken != self._n_taken or self._since == math.inf:
            self._n_taken, self._since = n_taken, now
        return now - self._since


class Visitor(web.RequestHandler):
    """One connection."""

    __slots__ = ("_body_timer", "_door", "_heard_at", "_is_inside", "_request", "_wire")

    def __init__(self, door: Door, **options: Any) -> None:
        super().__init__(door, **options)
        self._door = door
        self._is_inside = False
        self._request: web.BaseRequest | None = None
        self._heard_at = 0.0
        self._body_timer: asyncio.TimerHandle | None = None
        self._wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = wire = cast("asyncio.Transport", transport)
        self._is_inside = self._door.lets_in(self)
        if self._is_inside:
            self._door.connected(self, wire)
            super().connection_made(wire)
            _ask_for_signs_of_life(wire.get_extra_info("socket"))
        else:
            self._refuse(wire)

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
        self._door.disconnected(self)
        super().connection_lost(exc)

    def cut_off(self) -> None:
        """At once, with all that was still to go out."""
        if self._wire is not None:
            self._wire.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_inside:
            self._heard_at = self._loop.time()
            self._door.heard(self)
            super().data_received(data)
            self._break_body()

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

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP; aiohttp would repeat part of it, and nobody else would know of it."""
        if not isinstance(exc, HttpProcessingError) or is_seen(request):
            return super().handle_error(request, status, exc, message)
        return self._door.unseen.refuse(request, 431 if isinstance(exc, LineTooLong) else 400)

    # ------------------------------------------------------------------ one request

    def begin(self, request: web.BaseRequest) -> None:
        self._request = request
        if not request.content.is_eof() and math.isfinite(self._door.timeout_s):
            self._heard_at = self._loop.time()
            self._set_body_timer()
        request.content.on_eof(functools.partial(self._has_all_of, request))
        self._break_body()

    def _break_body(self) -> None:
        """Tell who reads a body that its rest is no HTTP: aiohttp would have them wait for it."""
        request = self._request
        if request is None or request.content.is_eof() or not self._messages:
            return
        next_message, _ = self._messages[0]
        if not isinstance(next_message, RawRequestMessage):
            request.content.set_exception(web.RequestPayloadError("the body is no HTTP"))

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


def _all_seen(handler: _Handle, unseen: Unseen) -> _Handle:
    """An expectation that nobody meets (417) is told before the middlewares have the request."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as answer:
            if is_seen(request):
                raise
            return unseen.refuse(request, answer.status)

    return handle


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


def _ask_for_signs_of_life(sock: socket.socket | None) -> None:
    """Of a client that waits for its answer, from the kernel; aiohttp set SO_KEEPALIVE."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for name, seconds in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)


def _n_taken(transport: asyncio.Transport) -> int:
    """Grows with every byte that the other side takes: what it has acknowledged, where Linux says.

    Not TCP_USER_TIMEOUT: that ends connections whose window opens a little at a time, too.
    """
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int.from_bytes(info[_BYTES_ACKED], sys.byteorder)
    except (OSError, AttributeError):  # a unix socket; another system
        return -transport.get_write_buffer_size()
