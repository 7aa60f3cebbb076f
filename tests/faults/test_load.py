"""Load: sixteen clients and three models, cancellations, reloads and a killed engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.system
@pytest.mark.native
@pytest.mark.timeout(300)
def test_every_answer_ends_once_and_equals_the_answer_without_load(tmp_path: Path) -> None:
    """A short run of `make soak`: too short to measure growth or latency."""
    data = tmp_path / "soak.json"
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", "0.3", "--json", str(data)]
    subprocess.run(command, cwd=ROOT, check=False, timeout=280)
    found = json.loads(data.read_bytes())
    assert sum(row["sent"] for row in found["rows"]) > 50
    assert (found["broken"], found["unexplained"], found["different"]) == (0, 0, 0)
    assert (found["n_bad_log_lines"], found["n_under_way"]) == (0, 0)
    assert found["compared"] > 30
    assert sum(found["kills"].values()) == 1
    assert (found["tracebacks"], found["exit_status"]) == (0, 0)
    assert (found["n_left_processes"], found["n_left_files"]) == (0, 0)
