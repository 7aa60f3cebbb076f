"""Notifications, with a socket in systemd's place."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from specd.sd_notify import notify


@pytest.mark.parametrize(
    "abstract",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has them")
        ),
    ],
)
def test_the_lines_arrive_in_one_datagram(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool
) -> None:
    name = f"specd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)
        assert notify("READY=1", "STATUS=listening")
        assert systemd.recv(100) == b"READY=1\nSTATUS=listening"


@pytest.mark.parametrize("address", ["", "vsock:2:9999", "/nonexistent/notify"])
def test_where_nobody_listens_nothing_breaks(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")
