"""Who listens already."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from specd.port_holder import Holder, holder_of, listener_on
from specd.settings import HostAddress


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
