"""The runs of one workload as a grid: a row per prompt, a column per mode."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from specd.bench.mode import PLAIN, Kind, Mode
from specd.bench.runs import Run

#: Shorter answers are not compared: the clock dominates their speed.
MIN_TIMED = 8


@dataclass(frozen=True, slots=True)
class MedianRange:
    """Median, smallest and largest of one figure per prompt."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return the range of the values, None where there are none."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1]) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The comparable runs of one workload at one temperature and number of streams.

    rows: prompt → mode → run; every row has every mode, with MIN_TIMED tokens or more.
    n_left_out: prompts without such a row.
    """

    workload: str
    temperature: float
    streams: int
    modes: tuple[Mode, ...]
    rows: Mapping[int, Mapping[Mode, Run]]
    n_left_out: int = 0

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Self:
        """Return the grid of runs that share workload, temperature and number of streams."""
        rows: dict[int, dict[Mode, Run]] = {}
        for run in runs:
            rows.setdefault(run.prompt, {})[run.mode] = run
        modes = sorted({run.mode for run in runs}, key=lambda mode: mode.sort_key)
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
        """Return tokens/s of `mode` over tokens/s of `other`, for each prompt."""
        return [row[mode].tokens_per_s / row[other].tokens_per_s for row in self.rows.values()]

    def ratio(self, mode: Mode, other: Mode) -> float:
        """Return the median of the ratios; there must be rows."""
        return statistics.median(self.ratios(mode, other))

    def best(self, modes: Iterable[Mode]) -> Mode | None:
        """Return the mode with the highest median ratio to plain decoding, None of no modes."""
        return max(modes, key=lambda mode: self.ratio(mode, PLAIN), default=None)

    def speed(self, mode: Mode) -> float:
        """Return tokens per second over all prompts."""
        runs = [row[mode] for row in self.rows.values()]
        return sum(run.n_timed for run in runs) / sum(run.seconds for run in runs)


def grids(runs: Iterable[Run]) -> tuple[Grid, ...]:
    """Return a grid per workload, temperature and number of streams, in run order.

    A grid may have no rows.
    """
    sorted_out: dict[tuple[int, float, str], list[Run]] = {}
    for run in runs:
        sorted_out.setdefault((run.streams, run.temperature, run.workload), []).append(run)
    return tuple(map(Grid.of, sorted_out.values()))


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _is_timed(run: Run) -> bool:
    return run.n_timed >= MIN_TIMED and run.seconds > 0
