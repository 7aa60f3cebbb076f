"""Memory of a simulated load, measured by a process that may fail in every way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specd.core import EngineSpec, SimulatedLoad
from specd.runner import simulate
from tests.gguf_files import VOCABULARY, write_llama


def load(weights: Path) -> SimulatedLoad:
    return SimulatedLoad(
        spec=EngineSpec(weights=str(weights)),
        is_drafter=False,
        architecture="llama",
        n_vocab=len(VOCABULARY.tokens),
        n_ctxs=(256, 512),
    )


def test_llama_cpp_measures_each_context(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    loads = [load(tmp_path / "bad.gguf"), load(write_llama(tmp_path / "x.gguf"))]
    damaged, good = simulate(loads)
    assert damaged is None
    assert good is not None
    short, long = good
    assert (short.n_ctx, long.n_ctx) == (256, 512)
    assert [layer for layer, _ in long.layers] == [0, 1]
    assert long.layers[0][1] == 2 * short.layers[0][1] > 0
    assert long.scratch_bytes > 0


@pytest.mark.parametrize(
    "script, reason",
    [
        ("import os; os.abort()", "exit status -6"),
        ("print('noise'); raise SystemExit(3)", "exit status 3"),
        ("import time; time.sleep(60)", "more than 0.2 s"),
    ],
)
def test_a_process_that_fails_is_logged_and_measures_nothing(
    script: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = simulate([load(Path("x"))], command=(sys.executable, "-c", script), timeout_s=0.2)
    assert found == [None]
    assert reason in caplog.text


def test_a_program_that_does_not_exist_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert simulate([load(Path("x"))], command=("/nonexistent",)) == [None]
    assert "cannot measure a model before its load" in caplog.text
