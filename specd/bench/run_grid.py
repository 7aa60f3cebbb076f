"""Runs laid out for comparing: of one workload, a row per prompt and a column per mode."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from specd.bench.mode import PLAIN, Kind, Mode
from specd.bench.runs import Run

#: Answers with fewer timed tokens say more about the clock than about the mode.
MIN_TIMED = 8


@dataclass(frozen=True, slots=True)
class MedianRange:
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
class Grid:
    """rows: prompt → mode → run, every row with every mode, all long enough to be timed.

    n_left_out: prompts that were not.
    """

    workload: str
    temperature: float
    streams: int
    modes: tuple[Mode, ...]
    rows: Mapping[int, Mapping[Mode, Run]]
    n_left_out: int = 0

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Self:
        """Runs of one workload, temperature and number of streams."""
        rows: dict[int, dict[Mode, Run]] = {}
        for run in runs:
            rows.setdefault(run.prompt, {})[run.mode] = run
        modes = sorted({run.mode for run in runs}, key=lambda mode: mode.place)
        timed = {
            prompt: row
            for prompt, row in rows.items()
            if len(row) == len(modes) and all(map(_is_timed, row.values()))
        }
        return cls(
            workload=runs[0].workload,
            temperature=runs[0].temperature,
            streams=runs[0].streams,
            modes=tuple(modes),
            rows=timed,
            n_left_out=len(rows) - len(timed),
        )

    def of_kind(self, *kinds: Kind) -> list[Mode]:
        return [mode for mode in self.modes if mode.kind in kinds]

    def ratios(self, mode: Mode, other: Mode) -> list[float]:
        """tokens/s of the one over those of the other, prompt by prompt."""
        return [row[mode].tokens_per_s / row[other].tokens_per_s for row in self.rows.values()]

    def ratio(self, mode: Mode, other: Mode) -> float:
        """The median of the ratios; there must be rows."""
        return statistics.median(self.ratios(mode, other))

    def best(self, modes: Iterable[Mode]) -> Mode | None:
        """The mode with the highest median ratio to plain decoding; None of none."""
        return max(modes, key=lambda mode: self.ratio(mode, PLAIN), default=None)

    def speed(self, mode: Mode) -> float:
        """All its tokens over all its seconds."""
        runs = [row[mode] for row in self.rows.values()]
        return sum(run.n_timed for run in runs) / sum(run.seconds for run in runs)


def grids(runs: Iterable[Run]) -> tuple[Grid, ...]:
    """In the order of the runs; one without a timed prompt is among them, with no rows."""
    sorted_out: dict[tuple[int, float, str], list[Run]] = {}
    for run in runs:
        sorted_out.setdefault((run.streams, run.temperature, run.workload), []).append(run)
    return tuple(map(Grid.of, sorted_out.values()))


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _is_timed(run: Run) -> bool:
    return run.n_timed >= MIN_TIMED and run.seconds > 0
