"""Define the bounds that the controller must meet, and check them.

All limits are here: CELL_LIMITS, SITUATION_LIMITS and a few constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.simulator.cells import CellFigures
from benchmarks.simulator.report import Report
from benchmarks.simulator.situations import NOISY, SituationFigures

#: Plain passes that an answer may take beyond ALLOWED_SHARE of its plain time.
ALLOWED_PASSES = 2.0
#: Geometric mean over all cells: speed of the median session ÷ that of the best single length.
LEAST_MEAN = 1.04
#: If the best single length gains this much, a policy must not be slower than it.
_PAYS = 1.1


@dataclass(frozen=True, slots=True)
class CellLimit:
    """The least value of a figure, for every cell that it applies to."""

    what: str
    least: float
    figure: Callable[[CellFigures], float]
    applies: Callable[[CellFigures], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class SituationLimit:
    """The least value of a ratio.  of_worst: of the worst session; else of the median one."""

    situation: str
    what: str
    least: float
    of_worst: bool

    def figure(self, figures: SituationFigures) -> float:
        return figures.worst if self.of_worst else figures.ratio


CELL_LIMITS = (
    CellLimit(
        f"median session ÷ best single length, where that gains ≥ {_PAYS:g}",
        1.0,
        lambda cell: cell.to_best,
        lambda cell: cell.best_gain >= _PAYS,
    ),
    CellLimit(
        "the same, elsewhere", 0.99, lambda cell: cell.to_best, lambda cell: cell.best_gain < _PAYS
    ),
    CellLimit("worst session ÷ best single length", 0.97, lambda cell: cell.worst_session),
    CellLimit(
        "first eight answers of a cold start ÷ best single length, median",
        0.97,
        lambda cell: cell.first_eight,
    ),
    CellLimit("all sessions ÷ oracle or best single length", 0.97, lambda cell: cell.to_oracle),
)

_TO_BEST, _TO_PLAIN = "worst session ÷ best single length", "worst session ÷ plain"
SITUATION_LIMITS = (
    SituationLimit("useless drafter", _TO_PLAIN, 0.99, of_worst=True),
    SituationLimit("useless drafter, four slots", _TO_PLAIN, 0.99, of_worst=True),
    # The bound of a single answer allows a session to lose 5 % and 2 passes per answer.
    SituationLimit("adversary", _TO_PLAIN, 0.93, of_worst=True),
    SituationLimit("bad beginning", "the rest of the " + _TO_BEST, 0.97, of_worst=True),
    SituationLimit("long prompts", _TO_PLAIN, 0.99, of_worst=True),
    SituationLimit(NOISY, "median session ÷ best single length", 0.97, of_worst=False),
    SituationLimit("text that turns", "÷ oracle of each part", 0.97, of_worst=False),
    SituationLimit("load that turns", "÷ best single length of each part", 0.97, of_worst=False),
    SituationLimit("history of a parked pair", _TO_BEST, 0.97, of_worst=True),
    SituationLimit("history of a perfect pair", _TO_BEST, 0.97, of_worst=True),
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound and its result.

    demanded: the limit as text.  figure: the worst value and its place.  holds: whether it meets
    the limit.
    """

    what: str
    demanded: str
    figure: str
    holds: bool


Figures = CellFigures | SituationFigures


def bounds(report: Report) -> Iterator[Bound]:
    """Yield the bounds of cells, of single answers and of situations."""
    for limit in CELL_LIMITS:
        found = [cell for cell in report.cells if limit.applies(cell)]
        yield _least(limit.what, limit.least, found, [limit.figure(cell) for cell in found])
    mean = math.exp(sum(math.log(cell.to_best) for cell in report.cells) / len(report.cells))
    yield Bound(
        "median session ÷ best single length, geometric mean over all cells",
        f"≥ {LEAST_MEAN:.2f}",
        f"{mean:.3f}",
        round(mean, 3) >= LEAST_MEAN,
    )
    n_locked_out = sum(cell.n_locked_out for cell in report.cells)
    n_all = sum(cell.n_sessions for cell in report.cells)
    yield Bound(
        "sessions below 0.9 of it (locked out)", "0", f"{n_locked_out} of {n_all}", not n_locked_out
    )
    yield from _worst_answers(report)
    for of_one in SITUATION_LIMITS:
        several = [one for one in report.situations if one.situation == of_one.situation]
        ratios = [of_one.figure(one) for one in several]
        yield _least(f"{of_one.situation}: {of_one.what}", of_one.least, several, ratios)


def _least(what: str, least: float, found: Sequence[Figures], ratios: Sequence[float]) -> Bound:
    if not found:
        return Bound(what, f"≥ {least:.2f}", "nothing to be judged", holds=True)
    rounded = [round(ratio, 3) for ratio in ratios]
    n_held = sum(ratio >= least for ratio in rounded)
    worst = min(range(len(found)), key=rounded.__getitem__)
    shown = f"{rounded[worst]:.3f} ({_place(found[worst])}); held in {n_held} of {len(found)}"
    return Bound(what, f"≥ {least:.2f}", shown, n_held == len(found))


def _worst_answers(report: Report) -> Iterator[Bound]:
    slowest = max(report.cells, key=lambda cell: cell.worst_slowdown)
    yield _most(
        "every single answer, beyond 1.05 × plain, in plain passes",
        report.cells,
        f"; at most {slowest.worst_slowdown:.2f} × plain ({_place(slowest)})",
    )
    measured = [
        one for one in report.situations if one.worst_answer is not None and one.situation != NOISY
    ]
    if measured:
        yield _most("the same in every other situation without noise", measured)


def _most(what: str, found: Sequence[Figures], more: str = "") -> Bound:
    passes = [round(one.worst_answer or 0.0, 2) for one in found]
    n_held = sum(n <= ALLOWED_PASSES for n in passes)
    at = max(range(len(found)), key=passes.__getitem__)
    worst = found[at]
    name = f"{worst.situation}, " if isinstance(worst, SituationFigures) else ""
    shown = f"{passes[at]:.1f} ({name}{_place(worst)}){more}; held in {n_held} of {len(found)}"
    return Bound(what, f"≤ {ALLOWED_PASSES:.0f}", shown, n_held == len(found))


def _place(figures: Figures) -> str:
    return f"{figures.drafter}, {figures.curve}, T = {figures.temperature:g}"
