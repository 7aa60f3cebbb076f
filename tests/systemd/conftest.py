"""One box for the tests of a file; each test begins with a service that never ran."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd.box import Box, obstacle, specd_box


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """With specd as it is shipped, not started."""
    if why_not := obstacle():
        pytest.skip(why_not)
    with specd_box(tmp_path_factory.mktemp("box")) as box:
        yield box


@pytest.fixture
def box(booted: Box) -> Iterator[Box]:
    yield booted
    booted("systemctl", "stop", "specd.socket", "specd.service", check=False)
    booted("rm", "-rf", "/etc/systemd/system/specd.service.d", "/etc/systemd/system/specd.socket.d")
    booted("rm", "-f", "/etc/specd/specd.env")
    booted("systemctl", "daemon-reload")
    booted("systemctl", "reset-failed")
    booted("journalctl", "-q", "--rotate")
    booted("journalctl", "-q", "--vacuum-time=1us")
