"""Limits the memory of incomplete request headers: aiohttp only limits each line.

Any client that can connect can send them, even without a key.  Invalid framing that aiohttp accepts
is refused here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

#: Headers of one request, as in Go's net/http (DefaultMaxHeaderBytes).
MAX_HEADERS_BYTES: Final = 2**20
#: Each connection may hold this much; more comes from the budget that all connections share.
BYTES_PER_CONNECTION: Final = 2**16
SHARED_BYTES: Final = 2**25
#: What ends the headers, and a chunked body.
_BLANK_LINE: Final = b"\r\n\r\n"


class HeaderBudget:
    """The bytes of headers that all connections together may hold beyond their own allowance."""

    def __init__(self, n_bytes: int = SHARED_BYTES) -> None:
        self.n_free = n_bytes


class BoundedParser:
    """A wrapper of aiohttp's request parser that limits the size of incomplete headers.

    n_messages: how many requests it has parsed, with those that are not valid HTTP.
    """

    def __init__(self, parser: Any, budget: HeaderBudget) -> None:
        self.n_messages = 0
        self._parser = parser
        self._budget = budget
        self._body: StreamReader | None = None
        self._tail = b""  # in which a blank line may have begun
        # Both are at least the bytes of incomplete headers, unless a body is incomplete.
        self._n_since_blank_line = 0
        self._n_since_message: int | None = None  # negative: missing of the body; None: unknown
        self._n_reserved = 0  # bytes of incomplete headers, from the shared budget

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    @property
    def expects_body(self) -> bool:
        """Return whether the body of the last request is incomplete."""
        return self._body is not None and not self._body.is_eof()

    def feed_data(self, data: bytes) -> Any:
        """Parse the bytes and return what aiohttp's parser returns.

        Raises LineTooLong for incomplete headers that exceed the limit or the free budget, and
        BadHttpMessage for framing that the protocol's version does not allow.  Headers that are
        complete with these bytes are only limited by aiohttp; bytes after them count.
        """
        try:
            return self._feed(data)
        except HttpProcessingError:
            self.n_messages += 1
            if self._body is not None and self.expects_body:  # else its reader would wait for ever
                self._body.set_exception(web.RequestPayloadError("the body is not valid HTTP"))
            raise

    def _feed(self, data: bytes) -> Any:
        parsed = self._parser.feed_data(data)
        messages, is_upgraded, _ = parsed
        for message, _ in messages:
            _check_framing(message)
        if messages:
            self.n_messages += len(messages)
            self._body = messages[-1][1]
        self._count(data, [message for message, _ in messages])
        if is_upgraded:  # aiohttp feeds the rest again if it is a request
            self._tail, self._n_since_blank_line, self._n_since_message = b"", 0, None
        self._reserve(self._n_incomplete())
        return parsed

    def _count(self, data: bytes, messages: Sequence[object]) -> None:
        """Count the bytes after the last blank line, and after the last message if possible."""
        stream = self._tail + data
        self._tail = stream[1 - len(_BLANK_LINE) :]
        _, blank_line, after_first = stream.partition(_BLANK_LINE)
        self._n_since_blank_line += len(data)
        if blank_line:
            self._n_since_blank_line = len(stream) - stream.rfind(_BLANK_LINE) - len(_BLANK_LINE)
        if messages:
            # The end of the last one of several is unknown: bodies may have blank lines.
            is_known = len(messages) == 1 and blank_line
            n_body = _body_bytes(messages[0]) if is_known else None
            self._n_since_message = None if n_body is None else len(after_first) - n_body
        elif self._n_since_message is not None:
            self._n_since_message += len(data)

    def _n_incomplete(self) -> int:
        """Return the bytes of incomplete headers, or a little more after pipelined requests."""
        if self._n_since_message is not None:
            return max(0, min(self._n_since_message, self._n_since_blank_line))
        return 0 if self.expects_body else self._n_since_blank_line

    def _reserve(self, n_bytes: int) -> None:
        more = max(0, n_bytes - BYTES_PER_CONNECTION) - self._n_reserved
        if n_bytes > MAX_HEADERS_BYTES or more > self._budget.n_free:
            raise LineTooLong(b"", MAX_HEADERS_BYTES)
        self._n_reserved += more
        self._budget.n_free -= more

    def release(self) -> None:
        """Return the bytes to the shared budget."""
        self._budget.n_free += self._n_reserved
        self._n_reserved = 0


def _body_bytes(message: object) -> int | None:
    """Return the size of the message's body, 0 for none; None if it has chunks."""
    if not isinstance(message, RawRequestMessage) or message.chunked:
        return None
    return int(message.headers.get(hdrs.CONTENT_LENGTH, 0))


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
