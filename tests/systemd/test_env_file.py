"""The environment file, read by a real systemd and by specd."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.settings.env_file import parse_env
from tests.systemd.container import SystemdContainer, reason_unavailable
from tests.test_env_file import WEIRD

pytestmark = pytest.mark.system

_UNIT = """\
[Service]
Type=oneshot
EnvironmentFile=/etc/weird.env
ExecStart=/usr/bin/env -0
StandardOutput=truncate:/run/weird
"""


def test_systemd_and_specd_read_the_same_variables(tmp_path: Path) -> None:
    if why_not := reason_unavailable():
        pytest.skip(why_not)
    files = {"/etc/weird.env": WEIRD}
    with SystemdContainer.boot(tmp_path, units={"weird.service": _UNIT}, files=files) as container:
        container("systemctl", "start", "weird")
        said = container("cat", "/run/weird").rstrip("\0").split("\0")
    theirs = dict(entry.split("=", 1) for entry in said)
    ours = parse_env(WEIRD)
    assert {name: theirs.get(name) for name in ours} == ours
    assert {name for name in theirs if len(name) == 1} == set(ours)
