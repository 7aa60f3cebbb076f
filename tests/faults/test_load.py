"""Load: sixteen clients and three models, cancellations, reloads and an engine that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.soak.soak_daemon import ROOT


@pytest.mark.system
@pytest.mark.native
@pytest.mark.timeout(300)
def test_every_answer_ends_once_and_is_what_it_is_alone(tmp_path: Path) -> None:
    """The first seconds of `make soak`, too few to tell of growth and time."""
    data = tmp_path / "soak.json"
    command = [sys.executable, "-m", "scripts.soak", "--minutes", "0.3", "--json", str(data)]
    subprocess.run(command, cwd=ROOT, check=False, timeout=280)
    found = json.loads(data.read_bytes())
    assert sum(row["sent"] for row in found["rows"]) > 50
    assert (found["broken"], found["unexplained"], found["different"]) == (0, 0, 0)
    assert (found["n_bad_log_lines"], found["n_under_way"]) == (0, 0)
    assert found["compared"] > 30
    assert sum(found["kills"].values()) == 1
    assert (found["tracebacks"], found["exit_status"]) == (0, 0)
    assert (found["n_left_processes"], found["n_left_files"]) == (0, 0)
