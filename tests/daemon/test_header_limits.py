"""The size of incomplete headers, of one connection and of all together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import HttpRequestParser

from specd.daemon.header_limits import (
    BYTES_PER_CONNECTION,
    MAX_HEADERS_BYTES,
    BoundedParser,
    HeaderBudget,
)

FULL = b"x" * BYTES_PER_CONNECTION
HEADERS_END, BODY_END = b"\r\n\r\n", b"0\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
BODY = b"x" * BYTES_PER_CONNECTION * 2 + b"\r\n\r\n" + b"x" * BYTES_PER_CONNECTION * 2
SIZED = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
#: More than the allowance of a connection.
INCOMPLETE = GET[:-2] + (b"A: " + b"b" * 4000 + b"\r\n") * (BYTES_PER_CONNECTION // 2000)


class FakeParser:
    """A parser whose headers end with a read of `HEADERS_END`, and its bodies of `BODY_END`."""

    def __init__(self) -> None:
        self.is_complete = True
        self.body: Any = SimpleNamespace(is_eof=lambda: self.is_complete)

    def feed_data(self, data: bytes) -> tuple[list[tuple[object, Any]], bool, bytes]:
        if data == BODY_END:
            self.is_complete = True
        if data != HEADERS_END:
            return [], False, b""
        self.is_complete = False
        return [(object(), self.body)], False, b""


def test_headers_have_an_allowance_each_and_share_a_budget() -> None:
    budget = HeaderBudget(2 * BYTES_PER_CONNECTION)
    one, other = (BoundedParser(FakeParser(), budget) for _ in range(2))
    for _ in range(3):
        one.feed_data(FULL)
    other.feed_data(FULL)
    assert budget.n_free == 0
    with pytest.raises(LineTooLong):
        other.feed_data(b"x")
    one.feed_data(HEADERS_END)
    assert budget.n_free == 2 * BYTES_PER_CONNECTION
    other.feed_data(b"x")
    assert budget.n_free == 2 * BYTES_PER_CONNECTION - 2  # the refused byte counts too
    other.release()
    assert budget.n_free == 2 * BYTES_PER_CONNECTION


def test_headers_of_one_request_have_a_limit() -> None:
    parser = BoundedParser(FakeParser(), HeaderBudget())
    parser.feed_data(b"x" * MAX_HEADERS_BYTES)
    with pytest.raises(LineTooLong):
        parser.feed_data(b"x")


def test_bodies_and_later_requests_do_not_count() -> None:
    budget = HeaderBudget(0)
    parser = BoundedParser(FakeParser(), budget)
    for _ in range(3):
        parser.feed_data(FULL)
        parser.feed_data(HEADERS_END)
        parser.feed_data(b"x" * MAX_HEADERS_BYTES * 2)
        parser.feed_data(BODY_END)
    assert budget.n_free == 0
    with pytest.raises(LineTooLong):
        parser.feed_data(FULL + b"x")


def real_parser(budget: HeaderBudget) -> BoundedParser:
    loop = asyncio.get_running_loop()
    return BoundedParser(HttpRequestParser(BaseProtocol(loop), loop, 2**20), budget)


@pytest.mark.parametrize("request_bytes", [GET, SIZED, CHUNKED, GET + GET])
@pytest.mark.parametrize("n_first", [0, 20, len(GET) - 1, len(SIZED) - 5, len(CHUNKED) - 2])
async def test_headers_in_the_same_read_as_the_end_of_a_request_count(
    request_bytes: bytes, n_first: int
) -> None:
    budget = HeaderBudget()
    before, parser = budget.n_free, real_parser(budget)
    if first := request_bytes[:n_first]:
        parser.feed_data(first)
    parser.feed_data(request_bytes[n_first:] + INCOMPLETE)
    assert before - budget.n_free == len(INCOMPLETE) - BYTES_PER_CONNECTION
    parser.feed_data(b"\r\n")
    assert parser.n_messages == request_bytes.count(b"HTTP") + 1
    assert budget.n_free == before


@pytest.mark.parametrize("request_bytes", [GET, SIZED, CHUNKED, GET + GET])
async def test_complete_requests_take_nothing_from_the_budget(request_bytes: bytes) -> None:
    parser = real_parser(HeaderBudget(0))
    for n_first in range(1, len(request_bytes), max(1, len(request_bytes) // 7)):
        parser.feed_data(request_bytes[:n_first])
        parser.feed_data(request_bytes[n_first:])
    assert not parser.expects_body
