"""Test the variables and sockets from systemd, and messages to it; a socket replaces systemd."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.sd_notify import Systemd


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        yield sock


@pytest.mark.parametrize(
    "abstract",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has them")
        ),
    ],
)
def test_the_lines_arrive_in_one_datagram(tmp_path: Path, abstract: bool) -> None:
    name = f"specd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name if abstract else name)
        ours = Systemd(notify_address="@" + name if abstract else name)
        assert ours.notify("READY=1", "STATUS=listening")
        assert systemd.recv(100) == b"READY=1\nSTATUS=listening"


@pytest.mark.parametrize("address", ["", "vsock:2:9999", "/nonexistent/notify"])
def test_a_missing_socket_is_not_an_error(address: str) -> None:
    assert not Systemd(notify_address=address).notify("READY=1")


def test_a_missing_systemd_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = Systemd(notify_address=str(tmp_path / "notify"))

    def n_said() -> int:
        assert not any(ours.notify("STATUS=x") for _ in range(5))
        return len(caplog.messages)

    assert n_said() == 1
    assert caplog.messages == ["cannot notify systemd: [Errno 2] No such file or directory"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        assert ours.notify("STATUS=x")
    assert n_said() == 2  # the socket is closed but still exists: another reason
    (tmp_path / "notify").unlink()
    assert n_said() == 3  # because a message succeeded in between


def test_a_full_queue_does_not_block(systemd: socket.socket) -> None:
    ours = Systemd(notify_address=systemd.getsockname())
    n_told = 0
    while ours.notify(f"STATUS={n_told}"):
        n_told += 1
    # Else every message would block the event loop.
    began_s = time.monotonic()
    assert not any(ours.notify("STATUS=lost") for _ in range(10))
    assert time.monotonic() - began_s < 10
    assert [systemd.recv(100) for _ in range(n_told)][-1] == f"STATUS={n_told - 1}".encode()
    assert ours.notify("STATUS=again")


def test_the_variables_are_removed() -> None:
    variables = {
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
        "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDS": "0",
        "LISTEN_FDNAMES": "",
        "PATH": "/bin",
    }
    ours = Systemd.from_environment(variables)
    assert (ours.notify_address, ours.watchdog_s, ours.sockets) == ("/run/notify", 30.0, ())
    assert variables == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},  # systemd's pid, never ours
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "-1", "LISTEN_PID": str(os.getpid())},
    ],
)
def test_variables_of_another_process_or_without_a_number_are_ignored(
    variables: dict[str, str],
) -> None:
    assert Systemd.from_environment(variables) == Systemd()


_TAKES = """
import os, subprocess, sys
from specd.sd_notify import Systemd
os.environ["LISTEN_PID"] = str(os.getpid())  # systemd knows it after the fork
taken = Systemd.from_environment()
print([sock.getsockname() for sock in taken.sockets], taken.watchdog_s)
# Whoever keeps all its file descriptors still does not get these.
subprocess.run(["sh", "-c", "env; ls -l /proc/self/fd"], close_fds=False)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/fd")
def test_sockets_are_served_and_no_child_has_them(tmp_path: Path) -> None:
    """As with systemd, they are the file descriptors from 3 on."""
    with socket.socket() as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(("127.0.0.1", 0))
        second.bind(str(tmp_path / "socket"))
        kept = a, b = os.dup(first.fileno()), os.dup(second.fileno())
        said = subprocess.run(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{a}- 4<&{b}-',
                "_",
                sys.executable,
                "-c",
                _TAKES,
            ],
            env=os.environ
            | {
                "PYTHONPATH": str(Path(__file__).parents[1]),
                "LISTEN_FDS": "2",
                "WATCHDOG_USEC": "1500000",
            },
            pass_fds=kept,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout.decode()
        for descriptor in kept:
            os.close(descriptor)
        addresses = [first.getsockname(), second.getsockname()]
    taken, *inherited = said.splitlines()
    assert taken == f"{addresses} 1.5"
    assert not [line for line in inherited if line.startswith(("LISTEN_", "WATCHDOG_"))]
    assert "socket:" not in "".join(inherited)


def test_a_descriptor_that_is_not_a_socket_is_an_error() -> None:
    code = (
        "import os; from specd.sd_notify import Systemd;"
        "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
        "Systemd.from_environment()"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 3</dev/null', "_", sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        check=False,
    )
    assert b"OSError" in done.stderr
