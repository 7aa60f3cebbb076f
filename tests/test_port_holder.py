"""Who listens already."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from specd.port_holder import Holder, holder_of, listener_on, meet
from specd.settings import HostAddress, parse_host


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "", "0.0.0.0", "localhost"])
def test_who_holds_a_port_is_found(listener: int, host: str) -> None:
    holder = holder_of(HostAddress("http", host, listener))
    assert holder is not None
    assert holder.pid == os.getpid()
    assert listener_on(HostAddress("http", host, listener)) == holder
    assert f"(pid {holder.pid}" in str(holder)


def test_a_free_port_has_no_holder(listener: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    assert holder_of(HostAddress("http", "127.0.0.1", free)) is None
    assert holder_of(HostAddress("http", "no-such-host.invalid", listener)) is None


def test_whoever_cannot_be_seen_is_another_program() -> None:
    assert str(Holder()) == "another program"


@pytest.mark.parametrize(
    "one,other,are_in_the_way",
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("0.0.0.0:1", "192.168.0.2:1", True),
        ("localhost:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "192.168.0.2:1", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_addresses_that_one_program_alone_can_have(
    one: str, other: str, are_in_the_way: bool
) -> None:
    a, b = parse_host(one), parse_host(other)
    assert (meet(a, b), meet(b, a)) == (are_in_the_way, are_in_the_way)
