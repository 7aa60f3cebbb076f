"""`specd trace`: its output and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specd.cli.app import app
from tests.engine.traces import write_trace


def trace(path: Path) -> int:
    return CliRunner().invoke(app, ["trace", str(path)]).exit_code


def test_a_trace_is_explained_and_replayed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_trace(tmp_path, n_right=3)
    assert trace(path) == 0
    said = capfd.readouterr().out
    assert "request 7: temperature 0.8" in said
    assert "every decision is the same" in said
    # A kill can truncate the last line; the lines before it are still valid.
    path.write_bytes(path.read_bytes()[:-5])
    assert trace(path) == 0
    said = capfd.readouterr().out
    assert "is cut off" in said
    assert "not ended" in said


def test_a_changed_decision_exits_with_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path)
    lines = path.read_text().splitlines()
    changed = next(at for at, line in enumerate(lines) if line.startswith('["plan"'))
    call = json.loads(lines[changed])
    lines[changed] = json.dumps([*call[:-1], 99])
    path.write_text("\n".join(lines) + "\n")
    assert trace(path) == 1
    said = capfd.readouterr().out
    assert f"line {changed + 1}, plan" in said
    assert "request 7" in said
    then, now = (f'["plan",7,0,1,[],2147483648,{n}]' for n in (99, call[-1]))
    assert call[-1] != 99
    assert f"\n    then: {then}\n    now:  {now}\n" in said


def test_a_call_that_the_controller_cannot_replay_is_a_difference(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_trace(tmp_path)
    path.write_text(path.read_text() + '["close",99,null]\n')
    assert trace(path) == 1
    assert "now:  KeyError: 99" in capfd.readouterr().out


def test_a_file_that_is_not_a_trace_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x"
    assert trace(path) == 2
    assert capfd.readouterr().err == f"Error: {path}: No such file or directory\n"
    path.write_text("hello\n")
    assert trace(path) == 2
    assert "not a trace of speculation" in capfd.readouterr().err
