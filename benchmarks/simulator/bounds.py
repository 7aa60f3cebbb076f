"""What the controller is to hold, and what it holds today."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.simulator.cells import ALLOWED_PASSES, CellFigures
from benchmarks.simulator.report import Report
from benchmarks.simulator.situations import SituationFigures

#: From this gain of the best single length on, a policy must not be slower than it.
_PAYS = 1.1


@dataclass(frozen=True, slots=True)
class Bound:
    """demanded: in words.  figure: today's worst, and where.  holds: whether that is enough."""

    what: str
    demanded: str
    figure: str
    holds: bool


Figures = CellFigures | SituationFigures


def bounds(report: Report) -> Iterator[Bound]:
    """All of them, in the order in which they matter."""
    pays = [cell for cell in report.cells if cell.best_gain >= _PAYS]
    others = [cell for cell in report.cells if cell.best_gain < _PAYS]
    yield _least(
        f"median session ÷ best single length, where that gains ≥ {_PAYS:g}",
        1.0,
        pays,
        _to_best,
    )
    yield _least("the same, elsewhere", 0.99, others, _to_best)
    mean = math.exp(sum(math.log(cell.to_best) for cell in report.cells) / len(report.cells))
    yield Bound(
        "the same, geometric mean over all cells", "≥ 1.04", f"{mean:.3f}", round(mean, 3) >= 1.04
    )
    yield _least(
        "worst session ÷ best single length", 0.97, report.cells, lambda c: c.worst_session
    )
    n_locked_out = sum(cell.n_locked_out for cell in report.cells)
    n_all = sum(cell.n_sessions for cell in report.cells)
    yield Bound(
        "sessions below 0.9 of it (locked out)", "0", f"{n_locked_out} of {n_all}", not n_locked_out
    )
    yield _worst_answer(report.cells)
    yield _least(
        "first eight answers of a cold start ÷ best single length, median",
        0.97,
        report.cells,
        lambda cell: cell.first_eight,
    )
    yield _situation(report, "useless drafter", "worst session ÷ plain", 0.99, worst=True)
    yield _least(
        "all sessions ÷ oracle or best single length", 0.97, report.cells, lambda c: c.to_oracle
    )
    yield _situation(report, "text that turns", "÷ oracle of each part", 0.97, worst=False)
    yield _situation(
        report, "load that turns", "÷ best single length of each part", 0.97, worst=False
    )
    for name in ("history of a parked pair", "history of a perfect pair"):
        yield _situation(report, name, "worst session ÷ best single length", 0.97, worst=True)


def _to_best(cell: CellFigures) -> float:
    return cell.to_best


def _least(
    what: str,
    least: float,
    cells: Sequence[CellFigures],
    figure: Callable[[CellFigures], float],
) -> Bound:
    """A ratio that no cell may fall below."""
    if not cells:
        return Bound(what, f"≥ {least:.2f}", "no such cell", holds=True)
    ratios = [round(figure(cell), 3) for cell in cells]
    n_held = sum(ratio >= least for ratio in ratios)
    worst = min(range(len(cells)), key=ratios.__getitem__)
    shown = f"{ratios[worst]:.3f} ({_place(cells[worst])}); held in {n_held} of {len(cells)}"
    return Bound(what, f"≥ {least:.2f}", shown, n_held == len(cells))


def _worst_answer(cells: Sequence[CellFigures]) -> Bound:
    worst = max(cells, key=lambda cell: cell.worst_answer)
    n_held = sum(round(cell.worst_answer, 2) <= ALLOWED_PASSES for cell in cells)
    slowest = max(cells, key=lambda cell: cell.worst_slowdown)
    return Bound(
        "every single answer, beyond 1.05 × plain, in plain passes",
        f"≤ {ALLOWED_PASSES:.0f}",
        f"{worst.worst_answer:.1f} ({_place(worst)}); at most {slowest.worst_slowdown:.2f} × plain"
        f" ({_place(slowest)}); held in {n_held} of {len(cells)}",
        n_held == len(cells),
    )


def _situation(report: Report, name: str, what: str, least: float, *, worst: bool) -> Bound:
    """worst: the worst session is meant, not the median one."""
    found = [figures for figures in report.situations if figures.situation == name]
    ratios = [round(figures.worst if worst else figures.ratio, 3) for figures in found]
    n_held = sum(ratio >= least for ratio in ratios)
    at = min(range(len(found)), key=ratios.__getitem__)
    shown = f"{ratios[at]:.3f} ({_place(found[at])}); held in {n_held} of {len(found)}"
    return Bound(f"{name}: {what}", f"≥ {least:.2f}", shown, n_held == len(found))


def _place(figures: Figures) -> str:
    return f"{figures.drafter}, {figures.curve}, T = {figures.temperature:g}"
