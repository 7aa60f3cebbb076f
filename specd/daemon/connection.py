"""aiohttp's connection, with limits on header size, idle time and half-closed sockets.

This is the only module that changes a private member of aiohttp: `_parser`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from specd.api.request_recorder import is_recorded
from specd.daemon.header_limits import BoundedParser

if TYPE_CHECKING:
    from specd.daemon.http_server import HttpServer

log = logging.getLogger(__name__)

#: Seconds that a client may read its answer after it closed its sending side.
_HALF_CLOSED_S: Final = 0.25
#: `struct tcp_info` (linux/tcp.h) up to tcpi_bytes_acked.
_TCP_INFO_BYTES, _BYTES_ACKED = 128, slice(120, 128)
#: TCP keepalive, which detects a client that vanished (seconds).
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15}
#: Seconds that a refused client has to read the error.
LINGER_S: Final = 1.0

_FULL_BODY: Final = b'{"error":"server busy: too many connections"}'
_FULL_RESPONSE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Type: application/json; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(_FULL_BODY), _FULL_BODY)


class Connection(web.RequestHandler):
    """One client connection, which the server may refuse or evict.

    has_sent_request: whether the application has seen a request of this connection.
    """

    def __init__(self, server: HttpServer, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self.has_sent_request = False
        self._http_server = server
        self._is_admitted = False
        self._request: web.BaseRequest | None = None
        self._n_ended = 0
        self._last_data_at = 0.0
        self._raw_transport: asyncio.Transport | None = None
        self._n_acknowledged = 0
        self._stalled_since = math.inf
        self._bounded_parser = BoundedParser(self._parser, server.header_budget)
        # `_parser`: aiohttp limits each header but not all together, and has no public place
        # between the bytes and its parser.  It calls any object that replaces the parser.
        self._parser = cast("Any", self._bounded_parser)

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw_transport = raw_transport = cast("asyncio.Transport", transport)
        self._is_admitted = self._http_server.admit(self)
        if self._is_admitted:
            super().connection_made(raw_transport)
            enable_keepalive(raw_transport.get_extra_info("socket"))
        else:
            self._refuse(raw_transport)

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Answer 503 and close the connection, if possible after a delay.

        An immediate close could send a reset while the client still sends, and lose the answer.
        """
        transport.write(_FULL_RESPONSE)
        if self._http_server.may_linger():
            transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, transport.close)
        else:
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._is_admitted:
            self._last_data_at = asyncio.get_running_loop().time()
            self._http_server.mark_active(self)
            super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio allows a bool
        """Close the connection: `_HALF_CLOSED_S` later if an answer is pending, otherwise now.

        Return whether asyncio leaves it open for this time.
        """
        parser, transport = self._bounded_parser, self._raw_transport
        is_answered = parser.n_messages == self._n_ended
        if transport is None or is_answered or parser.expects_body:
            return False
        asyncio.get_running_loop().call_later(_HALF_CLOSED_S, transport.close)
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        self._bounded_parser.release()
        self._http_server.remove(self)
        super().connection_lost(exc)

    # ------------------------------------------------------------------ requests

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
        return self._http_server.early_errors.refuse(
            request, 431 if isinstance(exc, LineTooLong) else 400
        )

    def begin_request(self, request: web.BaseRequest) -> None:
        self._request = request
        self.has_sent_request = True

    def end_request(self) -> None:
        self._request = None
        self._n_ended += 1

    # ------------------------------------------------------------------ for the server

    @property
    def is_answering(self) -> bool:
        """Return whether the client waits for the daemon, not the daemon for the client."""
        return self._request is not None and self._request.content.is_eof()

    @property
    def has_unsent_data(self) -> bool:
        return self.transport is None or self.transport.get_write_buffer_size() > 0

    def close_if_stalled(self, now: float, timeout_s: float) -> None:
        """Close the connection if its client has stopped reading an answer or sending a body.

        now: the event loop's time.  aiohttp closes those that are idle or amid their headers.
        """
        transport = self._raw_transport
        assert transport is not None
        if self._stalled_s(now, transport) >= timeout_s:
            log.info(
                "closing a connection: the client read nothing of its answer for %.0f s", timeout_s
            )
            transport.abort()
        elif not self._bounded_parser.expects_body or not transport.is_reading():
            self._last_data_at = now  # the client is not late: the daemon may have paused reading
        elif now >= self._last_data_at + timeout_s:
            log.info("closing a connection: no data of its request for %.0f s", timeout_s)
            self.force_close()

    def _stalled_s(self, now: float, transport: asyncio.Transport) -> float:
        """Return the seconds since the client was first seen to acknowledge nothing.

        −inf if no data waits to be sent.
        """
        if not transport.get_write_buffer_size():
            self._stalled_since = math.inf
            return -math.inf
        n_acknowledged = _n_acknowledged(transport)
        if n_acknowledged != self._n_acknowledged or self._stalled_since == math.inf:
            self._n_acknowledged, self._stalled_since = n_acknowledged, now
        return now - self._stalled_since


def _n_acknowledged(transport: asyncio.Transport) -> int:
    """Return a number that grows with every byte that the client acknowledges.

    TCP_USER_TIMEOUT does not fit: it also ends connections whose window opens slowly.
    """
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int.from_bytes(info[_BYTES_ACKED], sys.byteorder)
    except (OSError, AttributeError):  # a unix socket; another system
        return -transport.get_write_buffer_size()


def enable_keepalive(sock: socket.socket | None) -> None:
    """Set the intervals of TCP keepalive; aiohttp has already set SO_KEEPALIVE."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for name, seconds in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)
