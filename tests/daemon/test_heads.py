"""What strangers may send of a head before it is whole, one by one and all together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.http_exceptions import LineTooLong

from specd.daemon.heads import MAX_HEAD_BYTES, OWN_BYTES, BoundedParser, HeadRoom

FULL = b"x" * OWN_BYTES


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
    room = HeadRoom(2 * OWN_BYTES)
    one, other = (BoundedParser(Parsing(), room) for _ in range(2))
    for _ in range(3):
        one.feed_data(FULL)
    other.feed_data(FULL)
    assert room.n_free == 0
    with pytest.raises(LineTooLong):
        other.feed_data(b"x")
    one.feed_data(b".")
    assert room.n_free == 2 * OWN_BYTES
    other.feed_data(b"x")
    assert room.n_free == 2 * OWN_BYTES - 2  # the byte that was refused is there, too
    other.give_back()
    assert room.n_free == 2 * OWN_BYTES


def test_one_head_has_no_more_than_go_allows() -> None:
    parser = BoundedParser(Parsing(), HeadRoom())
    parser.feed_data(b"x" * MAX_HEAD_BYTES)
    with pytest.raises(LineTooLong):
        parser.feed_data(b"x")


def test_bodies_and_later_requests_are_no_part_of_a_head() -> None:
    room = HeadRoom(0)
    parser = BoundedParser(Parsing(), room)
    for _ in range(3):
        parser.feed_data(FULL)
        parser.feed_data(b".")
        parser.feed_data(b"x" * MAX_HEAD_BYTES * 2)
        parser.feed_data(b"!")
    assert room.n_free == 0
    with pytest.raises(LineTooLong):
        parser.feed_data(FULL + b"x")
