"""Limits the memory of incomplete request headers: aiohttp only limits each line.

Any client that can connect can send them, even without a key.  Invalid framing that aiohttp accepts
is refused here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import HttpVersion11, hdrs
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.streams import StreamReader

#: Headers of one request, as in Go's net/http (DefaultMaxHeaderBytes).
MAX_HEADERS_BYTES: Final = 2**20
#: Each connection may hold this much; more comes from the budget that all connections share.
BYTES_PER_CONNECTION: Final = 2**16
SHARED_BYTES: Final = 2**25

_Messages = tuple[Sequence[tuple[Any, StreamReader]], bool, bytes]


class HeaderBudget:
    """The bytes of headers that all connections together may hold beyond their own allowance."""

    def __init__(self, n_bytes: int = SHARED_BYTES) -> None:
        self.n_free = n_bytes


class BoundedParser:
    """A wrapper of aiohttp's request parser that limits the size of incomplete headers."""

    def __init__(self, parser: Any, budget: HeaderBudget) -> None:
        self._parser = parser
        self._budget = budget
        self._body: StreamReader | None = None
        self._n_bytes = 0  # of the incomplete headers
        self._n_reserved = 0  # of these, from the shared budget

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> _Messages:
        """Parse the bytes and return aiohttp's messages.

        Raises LineTooLong for incomplete headers that exceed the limit or the free budget, and
        BadHttpMessage for framing that the protocol's version does not allow.  Headers that are
        complete with these bytes are only limited by aiohttp.
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
    """Refuse Transfer-Encoding in HTTP/1.0, which does not define it (RFC 9112, 6.1).

    A proxy in front of the daemon may compute another body length.  The rest of the body would
    then be read as another request.
    """
    if (
        isinstance(message, RawRequestMessage)
        and message.version < HttpVersion11
        and hdrs.TRANSFER_ENCODING in message.headers
    ):
        raise BadHttpMessage("Transfer-Encoding in HTTP/1.0")
