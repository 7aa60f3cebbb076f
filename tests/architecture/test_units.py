"""The units of systemd/ contain only directives that systemd knows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "systemd"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", ["specd.service", "specd.socket"])
def test_systemd_knows_every_directive(unit: str) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(UNITS / unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # It also complains that /opt/specd, where the unit's command will be, is not there yet.
    assert "Unknown" not in done.stdout + done.stderr
