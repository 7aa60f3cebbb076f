"""Share one container per test file; reset the service after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd.container import SystemdContainer, reason_unavailable, specd_container


@pytest.fixture(scope="module")
def booted_container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdContainer]:
    """Yield a container with the shipped specd, not started."""
    if why_not := reason_unavailable():
        pytest.skip(why_not)
    with specd_container(tmp_path_factory.mktemp("box")) as container:
        yield container


@pytest.fixture
def container(booted_container: SystemdContainer) -> Iterator[SystemdContainer]:
    yield booted_container
    booted_container("systemctl", "stop", "specd.socket", "specd.service", check=False)
    booted_container(
        "rm", "-rf", "/etc/systemd/system/specd.service.d", "/etc/systemd/system/specd.socket.d"
    )
    booted_container("rm", "-f", "/etc/specd/specd.env")
    booted_container("systemctl", "daemon-reload")
    booted_container("systemctl", "reset-failed")
    booted_container("journalctl", "-q", "--rotate")
    booted_container("journalctl", "-q", "--vacuum-time=1us")
