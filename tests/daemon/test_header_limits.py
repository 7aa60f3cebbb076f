"""What strangers may send of a head before it is whole, one by one and all together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.http_exceptions import LineTooLong

from specd.daemon.header_limits import (
    BYTES_PER_CONNECTION,
    MAX_HEADERS_BYTES,
    BoundedParser,
    HeaderBudget,
)

FULL = b"x" * BYTES_PER_CONNECTION


class Parsing:
    """A head ends with ".", and begins a body that ends with "!"."""

    def __init__(self) -> None:
        self.is_over = True
        self.body: Any = SimpleNamespace(is_eof=lambda: self.is_over)

    def feed_data(self, data: bytes) -> tuple[list[tuple[object, Any]], bool, bytes]:
        if data == b"!":
            self.is_over = True
        if data != b".":
            return [], False, b""
        self.is_over = False
        return [(object(), self.body)], False, b""


def test_heads_have_their_own_and_share_the_rest_of_the_room() -> None:
    budget = HeaderBudget(2 * BYTES_PER_CONNECTION)
    one, other = (BoundedParser(Parsing(), budget) for _ in range(2))
    for _ in range(3):
        one.feed_data(FULL)
    other.feed_data(FULL)
    assert budget.n_free == 0
    with pytest.raises(LineTooLong):
        other.feed_data(b"x")
    one.feed_data(b".")
    assert budget.n_free == 2 * BYTES_PER_CONNECTION
    other.feed_data(b"x")
    assert budget.n_free == 2 * BYTES_PER_CONNECTION - 2  # the byte that was refused is there, too
    other.release()
    assert budget.n_free == 2 * BYTES_PER_CONNECTION


def test_one_head_has_no_more_than_go_allows() -> None:
    parser = BoundedParser(Parsing(), HeaderBudget())
    parser.feed_data(b"x" * MAX_HEADERS_BYTES)
    with pytest.raises(LineTooLong):
        parser.feed_data(b"x")


def test_bodies_and_later_requests_are_no_part_of_a_head() -> None:
    budget = HeaderBudget(0)
    parser = BoundedParser(Parsing(), budget)
    for _ in range(3):
        parser.feed_data(FULL)
        parser.feed_data(b".")
        parser.feed_data(b"x" * MAX_HEADERS_BYTES * 2)
        parser.feed_data(b"!")
    assert budget.n_free == 0
    with pytest.raises(LineTooLong):
        parser.feed_data(FULL + b"x")
