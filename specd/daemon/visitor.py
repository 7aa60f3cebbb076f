"""One connection: what it owes, and what is owed to it.  What HTTP is, is aiohttp's business."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.typedefs import Handler

from specd.api.requests import is_seen
from specd.daemon.heads import BoundedParser
from specd.daemon.wire import ask_for_signs_of_life

if TYPE_CHECKING:
    from specd.daemon.door import Door

log = logging.getLogger(__name__)

#: Who says nothing more may still read a short answer (seconds); for a long one, it has left.
_HALF_CLOSED_S: Final = 0.25
#: Who is refused reads why, while what was sent meanwhile is thrown away (seconds).
LINGER_S: Final = 1.0

_SORRY: Final = b'{"error":"server busy: it has no room for more connections"}'
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Type: application/json; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_SORRY), _SORRY)


class Visitor(web.RequestHandler):
    """One connection."""

    __slots__ = ("_body_timer", "_door", "_heads", "_heard_at", "_is_inside", "_request", "_wire")

    def __init__(self, door: Door, **options: Any) -> None:
        super().__init__(door, **options)
        self._door = door
        self._is_inside = False
        self._request: web.BaseRequest | None = None
        self._heard_at = 0.0
        self._body_timer: asyncio.TimerHandle | None = None
        self._wire: asyncio.Transport | None = None
        # aiohttp asks whatever stands in the place of its parser.
        self._heads = BoundedParser(self._parser, door.heads)
        self._parser = cast("Any", self._heads)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = wire = cast("asyncio.Transport", transport)
        self._is_inside = self._door.lets_in(self)
        if self._is_inside:
            self._door.connected(self, wire)
            super().connection_made(wire)
            ask_for_signs_of_life(wire.get_extra_info("socket"))
        else:
            self._refuse(wire)

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Not closed at once: a reset would answer what the client sends, and the words be lost."""
        transport.write(_FULL)
        if self._door.may_linger():
            transport.write_eof()
            self._loop.call_later(LINGER_S, transport.close)
        else:
            transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._heads.give_back()
        self._stop_body_timer()
        self._step_outside()
        self._door.disconnected(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's may return one
        """Whether it stays open: as with Go, who has asked and says no more may have an answer."""
        waits_for_request = self._waiter is not None and not self._waiter.done()
        lacks_rest = self._request is not None and not self._request.content.is_eof()
        if self._wire is None or waits_for_request or lacks_rest:
            return False
        self._loop.call_later(_HALF_CLOSED_S, self._wire.close)
        return True

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


@web.middleware
async def attended(request: web.Request, handler: Handler) -> web.StreamResponse:
    visitor = request.protocol
    if not isinstance(visitor, Visitor):
        return await handler(request)
    visitor.begin(request)
    try:
        return await handler(request)
    finally:
        visitor.end()
