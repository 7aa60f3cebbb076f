"""How much of heads that are not whole yet is held: aiohttp bounds each line, and nothing in all.

Any client that can connect can send them, even without a key.  Faulty framing that aiohttp lets
pass is refused here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import HttpVersion11, hdrs
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.streams import StreamReader

#: Of one request: Go's net/http has the same (DefaultMaxHeaderBytes).
MAX_HEADERS_BYTES: Final = 2**20
#: Each connection has these for itself; the rest of its head comes out of the room of all.
BYTES_PER_CONNECTION: Final = 2**16
SHARED_BYTES: Final = 2**25

_Messages = tuple[Sequence[tuple[Any, StreamReader]], bool, bytes]


class HeaderBudget:
    """Bytes that all connections together may hold beyond their own."""

    def __init__(self, n_bytes: int = SHARED_BYTES) -> None:
        self.n_free = n_bytes


class BoundedParser:
    """Takes the place of a connection's `parser`, which parses as before."""

    def __init__(self, parser: Any, budget: HeaderBudget) -> None:
        self._parser = parser
        self._budget = budget
        self._body: StreamReader | None = None
        self._n_bytes = 0  # of the head that is not whole yet
        self._n_reserved = 0  # of these out of the room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> _Messages:
        """Raises LineTooLong for a head that is larger than it may be, or than there is room.

        One that is whole with these bytes is told by its lines alone.  Raises BadHttpMessage for
        framing that does not fit the protocol's version.
        """
        is_body = self._body is not None and not self._body.is_eof()
        parsed: _Messages = self._parser.feed_data(data)
        if messages := parsed[0]:
            for message, _ in messages:
                _check_framing(message)
            self._body = messages[-1][1]
            self.release()
        elif not is_body:
            self._reserve(len(data))
        return parsed

    def _reserve(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        more = max(0, self._n_bytes - BYTES_PER_CONNECTION) - self._n_reserved
        if self._n_bytes > MAX_HEADERS_BYTES or more > self._budget.n_free:
            raise LineTooLong(b"", MAX_HEADERS_BYTES)
        self._n_reserved += more
        self._budget.n_free -= more

    def release(self) -> None:
        self._budget.n_free += self._n_reserved
        self._n_bytes = self._n_reserved = 0


def _check_framing(message: object) -> None:
    """Refuse Transfer-Encoding in HTTP/1.0, which has none (RFC 9112, 6.1).

    A proxy before the daemon may have read the body by another length: the rest of it would then
    be a request of its own.
    """
    if (
        isinstance(message, RawRequestMessage)
        and message.version < HttpVersion11
        and hdrs.TRANSFER_ENCODING in message.headers
    ):
        raise BadHttpMessage("Transfer-Encoding in HTTP/1.0")
