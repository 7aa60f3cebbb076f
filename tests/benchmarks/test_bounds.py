"""The controller's bounds, checked in a few sessions of every drafter, curve and temperature.

The sessions have no noise, so a test may judge times.  `python -m benchmarks.simulator report`
judges 200 sessions of each; docs/benchmarks/simulator.md shows the results.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulator import report
from benchmarks.simulator.bounds import ALLOWED_PASSES, CELL_LIMITS, SITUATION_LIMITS
from benchmarks.simulator.cells import run_cell
from benchmarks.simulator.curves import CURVES, Curve
from benchmarks.simulator.situations import run_situation
from benchmarks.simulator.trace import Trace

N_SESSIONS = 2
#: Temperature of the situations; each has one session.
TEMPERATURE = 0.8
SITUATIONS = (
    "useless drafter",
    "useless drafter, four slots",
    "adversary",
    "bad beginning",
    "four slots",
)

places = pytest.mark.parametrize(
    "drafter, costs",
    [(drafter, costs) for drafter in report.DRAFTERS for costs in CURVES],
    ids=lambda value: value.name if isinstance(value, Curve) else value,
)


def few(drafter: str, every: int) -> Trace:
    """Return every n-th answer of the trace, so that there are some of all kinds."""
    trace = report.trace(drafter)
    answers = [answer for t in trace.temperatures for answer in trace.at(t)[::every]]
    return replace(trace, answers=answers)


def misses(found: dict[tuple[str, float], tuple[float, float]]) -> list[str]:
    """Return a line per figure below its limit.  found: (what, temperature) → (least, figure)."""
    return [
        f"{what}, T = {temperature:g}: {figure:.4f}, not {least}"
        for (what, temperature), (least, figure) in found.items()
        if round(figure, 3) < least
    ]


@places
def test_every_cell_meets_its_bounds(drafter: str, costs: Curve) -> None:
    trace = few(drafter, 3)
    found: dict[tuple[str, float], tuple[float, float]] = {}
    for temperature in trace.temperatures:
        figures = run_cell(trace, temperature, costs, N_SESSIONS)
        found |= {
            (limit.what, temperature): (limit.least, limit.figure(figures))
            for limit in CELL_LIMITS
            if limit.applies(figures)
        }
        # Negated, because the least is best here.
        found["every single answer", temperature] = -ALLOWED_PASSES, -figures.worst_answer
        assert figures.n_locked_out == 0
    assert misses(found) == []


@places
def test_every_answer_meets_its_bound_in_other_situations(drafter: str, costs: Curve) -> None:
    trace = few(drafter, 3)
    found: dict[tuple[str, float], tuple[float, float]] = {}
    limits = {limit.situation: limit for limit in SITUATION_LIMITS}
    for name in SITUATIONS:
        figures = run_situation(name, trace, TEMPERATURE, costs, 1)
        assert figures.worst_answer is not None
        found[f"{name}: every answer", TEMPERATURE] = -ALLOWED_PASSES, -figures.worst_answer
        if name in limits:
            limit = limits[name]
            found[f"{name}: {limit.what}", TEMPERATURE] = limit.least, limit.figure(figures)
    assert misses(found) == []
