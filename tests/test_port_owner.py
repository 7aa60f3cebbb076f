"""The process that listens on a port."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import psutil
import pytest

from specd.port_owner import (
    PortOwner,
    addresses_overlap,
    find_listener,
    find_port_owner,
    parse_systemd_unit,
)
from specd.settings import HostAddress, parse_host


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "", "0.0.0.0", "localhost"])
def test_the_process_on_a_port_is_found(listener: int, host: str) -> None:
    holder = find_port_owner(HostAddress("http", host, listener))
    assert holder is not None
    assert holder.pid == os.getpid()
    assert find_listener(HostAddress("http", host, listener)) == holder
    assert f"(pid {holder.pid}" in str(holder)


def test_a_free_port_has_no_process(listener: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    assert find_port_owner(HostAddress("http", "127.0.0.1", free)) is None
    assert find_port_owner(HostAddress("http", "no-such-host.invalid", listener)) is None


def test_a_hidden_process_is_another_program() -> None:
    assert str(PortOwner()) == "another program"


@pytest.mark.parametrize(
    "one,other,are_in_the_way",
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("0.0.0.0:1", "192.168.0.2:1", True),
        ("localhost:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "192.168.0.2:1", False),
        ("localhost:1", "[::1]:1", True),
        ("LocalHost:1", "localhost:1", True),
        ("localhost:1", "0.0.0.0:1", True),
        ("localhost:1", "192.168.0.2:1", False),
        ("localhost:1", "named.example:1", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_addresses_that_overlap(one: str, other: str, are_in_the_way: bool) -> None:
    a, b = parse_host(one), parse_host(other)
    assert (addresses_overlap(a, b), addresses_overlap(b, a)) == (are_in_the_way, are_in_the_way)


_USERS = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    "groups,unit",
    [
        ("0::/system.slice/ollama.service", "ollama.service"),
        ("0::/my.slice/my-ai.slice/ollama.service", "ollama.service"),
        ("0::/system.slice/docker.service/x/ollama.service", "docker.service"),
        ("0::/docker/0a/system.slice/ollama.service", "ollama.service"),
        ("4:memory:/x.service\n1:name=systemd:/system.slice/a.service\n0::/", "a.service"),
        (f"0::{_USERS}/app.slice/ollama.service", "ollama.service of user 1000"),
        (f"0::{_USERS}/app.slice/x.service/system.slice/ollama.service", "x.service of user 1000"),
        (f"0::{_USERS}/init.scope", ""),
        ("0::/user.slice/user-1000.slice/session-2.scope", ""),
        ("0::/user.slice/user-1000.slice/session-2.scope/ollama.service", ""),
        ("0::/", ""),
        ("", ""),
    ],
)
def test_the_unit_is_the_systems_or_a_users(groups: str, unit: str) -> None:
    assert parse_systemd_unit(f"{groups}\n") == unit


def test_a_program_name_is_printed_without_control_characters(
    listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "name", lambda _: "a\x1b[2J\n")
    holder = find_listener(HostAddress("http", "127.0.0.1", listener))
    assert holder is not None
    assert holder.name == "a?[2J?"
