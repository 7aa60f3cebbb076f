"""Test that compiled modules precede their sources and give the same figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.simulator import compiled

#: The module that compiles fastest among those that affect decisions.
SOURCES = [path for path in compiled.SOURCES if path.stem == "acceptance"]
PROGRAM = """
import sys
from pathlib import Path
from benchmarks.simulator import compiled
if len(sys.argv) > 1:
    compiled.use(Path(sys.argv[1]))
from benchmarks.simulator.engine import SimulatedEngine, SimulatedRequest
from benchmarks.simulator.curves import curve
from specd.engine.speculative import acceptance
from tests.benchmarks import synthetic_traces
print(Path(acceptance.__file__).suffix)
engine = SimulatedEngine(curve("cpu-steps"))
print([engine.answer(SimulatedRequest(one, 150)).ns for one in synthetic_traces.trace().answers])
"""


def simulate(*arguments: str) -> list[str]:
    """Return the suffix of the imported module, and the nanoseconds of the answers."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(
        command, cwd=compiled.ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_compiled_modules_are_used_and_give_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiled.compiled(SOURCES)
    of_source, of_compiled = simulate(), simulate(str(folder))
    assert (of_source[0], of_compiled[0]) == (".py", ".so")
    assert of_source[1] == of_compiled[1]
    assert compiled.compiled(SOURCES) == folder, "the second time it comes from the cache"
