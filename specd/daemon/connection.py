"""aiohttp's connection, with limits on header size, idle time and half-closed sockets."""

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

from specd.api.request_recorder import is_recorded
from specd.daemon.header_limits import BoundedParser
from specd.daemon.socket_stall import enable_keepalive

if TYPE_CHECKING:
    from specd.daemon.connection_limiter import ConnectionLimiter

log = logging.getLogger(__name__)

#: Seconds that a client may read its answer after it closed its sending side.
_HALF_CLOSED_S: Final = 0.25
#: Seconds that a refused client has to read the error.
LINGER_S: Final = 1.0

_FULL_BODY: Final = b'{"error":"server busy: too many connections"}'
_FULL_RESPONSE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Type: application/json; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_FULL_BODY), _FULL_BODY)


class Connection(web.RequestHandler):
    """One client connection, which the limiter may refuse or evict."""

    __slots__ = (
        "_body_timer",
        "_header_parser",
        "_is_admitted",
        "_last_data_at",
        "_limiter",
        "_raw_transport",
        "_request",
    )

    def __init__(self, limiter: ConnectionLimiter, **options: Any) -> None:
        super().__init__(limiter, **options)
        self._limiter = limiter
        self._is_admitted = False
        self._request: web.BaseRequest | None = None
        self._last_data_at = 0.0
        self._body_timer: asyncio.TimerHandle | None = None
        self._raw_transport: asyncio.Transport | None = None
        # aiohttp calls whatever object replaces its parser.
        self._header_parser = BoundedParser(self._parser, limiter.header_budget)
        self._parser = cast("Any", self._header_parser)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw_transport = raw_transport = cast("asyncio.Transport", transport)
        self._is_admitted = self._limiter.admit(self)
        if self._is_admitted:
            self._limiter.add_connection(self, raw_transport)
            super().connection_made(raw_transport)
            enable_keepalive(raw_transport.get_extra_info("socket"))
        else:
            self._refuse(raw_transport)

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Answer 503 and close the connection, if possible after a delay.

        An immediate close could send a reset while the client still sends, and lose the answer.
        """
        transport.write(_FULL_RESPONSE)
        if self._limiter.may_linger():
            transport.write_eof()
            self._loop.call_later(LINGER_S, transport.close)
        else:
            transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._header_parser.release()
        self._stop_body_timer()
        self._release_slot()
        self._limiter.remove_connection(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio allows a bool
        """Return whether the connection stays open: True while an answer is pending, as in Go."""
        waits_for_request = self._waiter is not None and not self._waiter.done()
        lacks_rest = self._request is not None and not self._request.content.is_eof()
        if self._raw_transport is None or waits_for_request or lacks_rest:
            return False
        self._loop.call_later(_HALF_CLOSED_S, self._raw_transport.close)
        return True

    def abort_connection(self) -> None:
        """Close the connection at once and drop unsent data."""
        if self._raw_transport is not None:
            self._raw_transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_admitted:
            self._last_data_at = self._loop.time()
            self._limiter.mark_active(self)
            super().data_received(data)
            self._fail_body_read()

    @property
    def can_evict(self) -> bool:
        """Return whether no data of an answer is waiting to be sent."""
        return self.transport is not None and not self.transport.get_write_buffer_size()

    def evict(self) -> None:
        # The transport takes a while to close; free its slot now.
        self._release_slot()
        self.force_close()

    def _release_slot(self) -> None:
        if self._is_admitted:
            self._is_admitted = False
            self._limiter.release_slot(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not valid HTTP, and record the request.

        aiohttp would repeat part of them in its answer, and no middleware would see the request.
        """
        if not isinstance(exc, HttpProcessingError) or is_recorded(request):
            return super().handle_error(request, status, exc, message)
        return self._limiter.early_errors.refuse(
            request, 431 if isinstance(exc, LineTooLong) else 400
        )

    # ------------------------------------------------------------------ one request

    def begin_request(self, request: web.BaseRequest) -> None:
        self._request = request
        if not request.content.is_eof() and math.isfinite(self._limiter.timeout_s):
            self._last_data_at = self._loop.time()
            self._set_body_timer()
        request.content.on_eof(functools.partial(self._on_body_received, request))
        self._fail_body_read()

    def _fail_body_read(self) -> None:
        """Make the read of a body fail if its rest is not valid HTTP; aiohttp would let it wait."""
        request = self._request
        if request is None or request.content.is_eof() or not self._messages:
            return
        next_message, _ = self._messages[0]
        if not isinstance(next_message, RawRequestMessage):
            request.content.set_exception(web.RequestPayloadError("the body is not valid HTTP"))

    def _on_body_received(self, request: web.BaseRequest) -> None:
        """Stop the body timer: from now on the client waits for the daemon."""
        if self._request is request:
            self._stop_body_timer()
            if self._is_admitted:
                self._limiter.set_idle(self, idle=False)

    def end_request(self) -> None:
        self._stop_body_timer()
        self._request = None
        if self._is_admitted:
            self._limiter.set_idle(self, idle=True)

    def _set_body_timer(self) -> None:
        self._body_timer = self._loop.call_at(
            self._last_data_at + self._limiter.timeout_s, self._check_body
        )

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _check_body(self) -> None:
        if self.transport is None:
            return
        now = self._loop.time()
        if not self.transport.is_reading():  # the daemon paused reading, so the client is not slow
            self._last_data_at = now
        if now >= self._last_data_at + self._limiter.timeout_s:
            log.info(
                "closing a connection: no data of its request for %.0f s", self._limiter.timeout_s
            )
            self.force_close()
        else:
            self._set_body_timer()


@web.middleware
async def handle_connection(request: web.Request, handler: Handler) -> web.StreamResponse:
    connection = request.protocol
    if not isinstance(connection, Connection):
        return await handler(request)
    connection.begin_request(request)
    try:
        return await handler(request)
    finally:
        connection.end_request()
