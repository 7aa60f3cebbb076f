"""What the runs come to: medians and spreads, mode against mode, prompt by prompt."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from specd.bench.runs import Run
from specd.bench.workload import AUTO, PLAIN

#: Answers with fewer timed tokens say more about the clock than about the mode.
MIN_TIMED = 8


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of one figure per prompt."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """None of no values."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1]) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFigures:
    """ratio: to plain decoding, prompt by prompt.  n_same_text: answers equal to plain's."""

    mode: str
    tokens_per_s: Spread
    ratio: Spread
    drafted: int
    accepted: int
    mean_draft_length: float
    n_same_text: int
    n_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All modes at one temperature.

    best: the mode other than auto with the highest median ratio to plain.
    auto_to_best: auto against that one mode.  auto_to_hindsight: against the fastest other mode of
    each prompt, which nobody knows beforehand.  overhead_ms: of plain decoding, per token.
    n_left_out: prompts whose answers ended too soon to be timed.
    """

    temperature: float
    modes: tuple[ModeFigures, ...]
    best: str = ""
    auto_to_best: Spread | None = None
    auto_to_hindsight: Spread | None = None
    overhead_ms: Spread | None = None
    n_left_out: int = 0
    max_cached: int = 0

    def of_mode(self, name: str) -> ModeFigures | None:
        return next((figures for figures in self.modes if figures.mode == name), None)


#: Runs of one temperature: prompt → mode → run.
_Grid = Mapping[int, Mapping[str, Run]]


def compare(runs: Sequence[Run]) -> tuple[Comparison, ...]:
    """One comparison per temperature, in the order of the runs.  Plain must be among the modes."""
    temperatures = dict.fromkeys(run.temperature for run in runs)
    return tuple(_compare([r for r in runs if r.temperature == t], t) for t in temperatures)


def _compare(runs: Sequence[Run], temperature: float) -> Comparison:
    grid: dict[int, dict[str, Run]] = {}
    for run in runs:
        grid.setdefault(run.prompt, {})[run.mode] = run
    timed = {
        prompt: row
        for prompt, row in grid.items()
        if all(run.n_timed >= MIN_TIMED and run.usage.generate_ns for run in row.values())
    }
    names = sorted({run.mode for run in runs}, key=_place)
    modes = tuple(figures for name in names if (figures := _figures(name, timed)) is not None)
    others = [figures for figures in modes if figures.mode != AUTO.name]
    best = max(others, key=lambda figures: figures.ratio.median).mode if others else ""
    has_auto = AUTO.name in names
    overheads = (row[PLAIN.name].overhead_ms for row in timed.values())
    return Comparison(
        temperature=temperature,
        modes=modes,
        best=best,
        auto_to_best=_auto_to(timed, lambda row: row[best].tokens_per_s) if has_auto else None,
        auto_to_hindsight=_auto_to(timed, _fastest_other) if has_auto else None,
        overhead_ms=Spread.of(ms for ms in overheads if ms is not None),
        n_left_out=len(grid) - len(timed),
        max_cached=max((run.usage.n_cached for run in runs), default=0),
    )


def _place(name: str) -> tuple[int, int]:
    """Plain, the fixed lengths by number, auto."""
    if name in {PLAIN.name, AUTO.name}:
        return (0 if name == PLAIN.name else 2), 0
    return 1, int(name.rpartition(" ")[2])


def _figures(name: str, grid: _Grid) -> ModeFigures | None:
    """None where no prompt of the grid was timed."""
    runs = [row[name] for row in grid.values()]
    speeds = Spread.of(run.tokens_per_s for run in runs)
    ratios = Spread.of(
        row[name].tokens_per_s / row[PLAIN.name].tokens_per_s for row in grid.values()
    )
    if speeds is None or ratios is None:
        return None
    drafted = sum(run.speculation.draft_n for run in runs)
    rounds = sum(run.speculation.rounds for run in runs)
    return ModeFigures(
        mode=name,
        tokens_per_s=speeds,
        ratio=ratios,
        drafted=drafted,
        accepted=sum(run.speculation.draft_n_accepted for run in runs),
        mean_draft_length=drafted / rounds if rounds else 0.0,
        n_same_text=sum(row[name].text == row[PLAIN.name].text for row in grid.values()),
        n_prompts=len(runs),
    )


def _auto_to(grid: _Grid, speed_of: Callable[[Mapping[str, Run]], float]) -> Spread | None:
    return Spread.of(row[AUTO.name].tokens_per_s / speed_of(row) for row in grid.values())


def _fastest_other(row: Mapping[str, Run]) -> float:
    return max(run.tokens_per_s for name, run in row.items() if name != AUTO.name)
