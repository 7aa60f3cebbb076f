"""Test the simulator's page and its stored figures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulator import page, report
from benchmarks.simulator.__main__ import main, stale
from benchmarks.simulator.bounds import SITUATION_LIMITS, bounds
from benchmarks.simulator.cells import CellFigures, run_cell
from benchmarks.simulator.curves import CURVES, curve
from benchmarks.simulator.situations import NOISY, SITUATIONS, SituationFigures
from specd.errors import StoreError
from tests.benchmarks import synthetic_traces

ROOT = Path(__file__).parents[2]
KEPT = report.read()


def test_the_page_matches_the_stored_figures() -> None:
    assert stale(ROOT) == []


def test_every_drafter_temperature_curve_and_situation_is_judged() -> None:
    places = {(d, t, c.name) for d in report.DRAFTERS for t in (0.0, 0.8) for c in CURVES}
    assert {(c.drafter, c.temperature, c.curve) for c in KEPT.cells} == places
    for name in SITUATIONS:
        found = [s for s in KEPT.situations if s.situation == name]
        assert {(s.drafter, s.temperature, s.curve) for s in found} == places


@pytest.mark.parametrize("at", [1, 17, 40])
def test_stored_figures_are_reproduced(at: int) -> None:
    """Simulate the first sessions of a few cells; `report --check` simulates all of them."""
    kept = KEPT.cells[at]
    trace = report.trace(kept.drafter)
    anew = run_cell(trace, kept.temperature, curve(kept.curve), 4, best_length=kept.best_length)
    assert anew.by_session == kept.by_session[:4]


def test_the_traces_are_many_long_answers_of_several_kinds() -> None:
    for name in report.DRAFTERS:
        trace = report.trace(name)
        assert trace.temperatures == (0.0, 0.8)
        for temperature in trace.temperatures:
            answers = trace.at(temperature)
            assert len(answers) >= 96
            assert min(len(answer.tokens) for answer in answers) >= 192
            assert len({answer.kind for answer in answers}) >= 4
    shares = [report.trace(name).first_right(0.8) for name in report.DRAFTERS]
    assert shares == pytest.approx([0.78, 0.63, 0.5], abs=0.02)
    assert sum(path.stat().st_size for path in report.TRACES.iterdir()) < 3_000_000


def cell(**changed: float) -> CellFigures:
    best = replace(KEPT.cells[0], drafter="demo", curve="gpu-cheap", temperature=0.0)
    good = replace(
        best,
        best_gain=1.5,
        to_best=1.05,
        worst_session=1.0,
        n_locked_out=0,
        to_oracle=0.99,
        worst_answer=1.9,
        first_eight=1.0,
    )
    return replace(good, **changed)  # type: ignore[arg-type]


def situation(name: str, ratio: float = 1.0) -> SituationFigures:
    best = replace(KEPT.situations[0], situation=name)
    return replace(best, ratio=ratio, worst=ratio, worst_answer=1.9)


def judged(one: CellFigures, ratio: float = 1.0) -> dict[str, bool]:
    """Group bounds by subject."""
    found = replace(
        KEPT, cells=(cell(), one), situations=tuple(situation(n, ratio) for n in SITUATIONS)
    )
    return {bound.what: bound.holds for bound in bounds(found)}


def test_good_figures_meet_every_bound() -> None:
    assert all(judged(cell()).values())


@pytest.mark.parametrize(
    "changed, what",
    [
        ({"to_best": 0.99}, "where that gains"),
        ({"to_best": 0.98, "best_gain": 1.0}, "the same, elsewhere"),
        ({"to_best": 1.0}, "geometric mean"),
        ({"worst_session": 0.96}, "worst session ÷ best"),
        ({"n_locked_out": 1}, "locked out"),
        ({"worst_answer": 2.1}, "every single answer"),
        ({"first_eight": 0.96}, "first eight"),
        ({"to_oracle": 0.96}, "oracle or best"),
    ],
)
def test_a_cell_that_misses_a_bound_fails(changed: dict[str, float], what: str) -> None:
    missed = [bound for bound, holds in judged(cell(**changed)).items() if not holds]
    assert any(what in bound for bound in missed)
    assert len(missed) <= 2


def test_situations_that_miss_their_bounds_fail() -> None:
    missed = [bound for bound, holds in judged(cell(), 0.92).items() if not holds]
    assert [bound.partition(":")[0] for bound in missed] == [
        limit.situation for limit in SITUATION_LIMITS
    ]


@pytest.mark.parametrize("name", [name for name in SITUATIONS if name != NOISY])
def test_one_answer_that_loses_too_much_fails_its_situation(name: str) -> None:
    slow = replace(situation(name), worst_answer=2.1)
    found = replace(KEPT, cells=(cell(),), situations=(situation(name), slow))
    [missed] = [bound for bound in bounds(found) if not bound.holds]
    assert missed.what == "the same in every other situation without noise"
    assert missed.figure.startswith(f"2.1 ({name}, ")


def test_figures_are_stored_and_read_again(tmp_path: Path) -> None:
    report.write(KEPT, tmp_path / "figures.json")
    assert report.read(tmp_path / "figures.json") == KEPT
    assert (tmp_path / "figures.json").read_bytes() == report.FIGURES.read_bytes()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(StoreError, match="no figures"):
        report.read(tmp_path / "other.json")


def test_the_page_shows_misses_as_such() -> None:
    found = replace(KEPT, cells=(cell(to_best=0.5),), situations=())
    found = replace(found, situations=tuple(situation(name) for name in SITUATIONS))
    text = page.render(found)
    assert "| **FAIL** |" in text
    assert "0.500 (demo, gpu-cheap, T = 0); held in 0 of 1" in text


def test_the_command_plays_a_file(tmp_path: Path) -> None:
    synthetic_traces.trace().save(tmp_path / "mine.npz")
    command = [sys.executable, "-m", "benchmarks.simulator", "run", "--sessions", "1"]
    ended = subprocess.run(
        [*command, "--trace", str(tmp_path / "mine.npz"), "--curve", "experts"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "drafter              invented" in ended.stdout


@pytest.mark.parametrize(
    "words, said",
    [
        (["run", "--trace", "missing.npz"], "missing.npz is no trace"),
        (["run", "--temperature", "0.5"], "demo was recorded at other temperatures: 0, 0.8"),
        (["record", "--out", "missing/x.npz"], "missing/x.npz cannot be written: there is no such"),
    ],
)
def test_the_command_reports_errors(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulator", *words])
    assert main() == 1
    assert f"error: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_the_number_of_sessions_must_be_positive(
    number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulator", "run", "--sessions", number])
    with pytest.raises(SystemExit):
        main()
    assert f"'{number}'" in capsys.readouterr().err
