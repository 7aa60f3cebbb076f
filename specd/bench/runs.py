"""The measurements of answers, in one form for specd and peers, and grids of them.

A grid holds one workload: a row per prompt, a column per mode.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from specd import core
from specd.bench.mode import PLAIN, Kind, Mode

#: Shorter answers are not compared: the clock dominates their speed.
MIN_TIMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The measurements of one answer, or of simultaneous answers, one per stream.

    prompt: number of the prompt in the workload; with several streams, of the group.
    repeat: number of the bench's repetition.
    texts: the answers, one per stream.
    seconds: with one stream the server's time from the first token on, which covers n_timed =
    n_generated − 1 tokens; with several streams wall time, prompts and all tokens included.
    native_s: the part of `seconds` spent in target passes; None where unknown.
    n_looked_up: the part of n_drafted that prompt lookup found.
    """

    workload: str
    temperature: float
    prompt: int
    mode: Mode
    streams: int = 1
    repeat: int = 0
    texts: tuple[str, ...] = ("",)
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int
    n_timed: int
    seconds: float
    native_s: float | None = None
    n_drafted: int = 0
    n_accepted: int = 0
    n_looked_up: int = 0
    n_looked_up_accepted: int = 0
    rounds: int = 0
    n_steps: int = 0
    drafted_per_depth: tuple[int, ...] = ()
    accepted_per_depth: tuple[int, ...] = ()
    state: str = ""
    reason: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second; 0 where nothing was timed."""
        return self.n_timed / self.seconds if self.seconds > 0 else 0.0

    @property
    def overhead_ms(self) -> float | None:
        """Milliseconds per token outside of target passes; None where unknown."""
        if self.native_s is None or self.n_timed <= 0:
            return None
        return (self.seconds - self.native_s) / self.n_timed * 1e3


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the engine or of a peer."""

    text: str
    usage: core.Usage
    speculation: core.SpeculationStats


def combine_answers(
    answers: Sequence[Answer],
    *,
    workload: str,
    temperature: float,
    prompt: int,
    repeat: int,
    mode: Mode,
    wall_s: float,
) -> Run:
    """Return the run of simultaneous answers."""
    usages = [answer.usage for answer in answers]
    stats = [answer.speculation for answer in answers]
    n_generated = sum(usage.n_generated for usage in usages)
    alone = len(answers) == 1
    return Run(
        workload=workload,
        temperature=temperature,
        prompt=prompt,
        mode=mode,
        streams=len(answers),
        repeat=repeat,
        texts=tuple(answer.text for answer in answers),
        n_prompt=sum(usage.n_prompt for usage in usages),
        n_cached=sum(usage.n_cached for usage in usages),
        n_generated=n_generated,
        n_timed=max(n_generated - 1, 0) if alone else n_generated,
        seconds=usages[0].generate_ns * 1e-9 if alone else wall_s,
        native_s=usages[0].native_ns * 1e-9 if alone and usages[0].native_ns else None,
        n_drafted=sum(each.draft_n for each in stats),
        n_accepted=sum(each.draft_n_accepted for each in stats),
        n_looked_up=sum(each.lookup_n for each in stats),
        n_looked_up_accepted=sum(each.lookup_n_accepted for each in stats),
        rounds=sum(each.rounds for each in stats),
        n_steps=sum(each.n_steps for each in stats),
        drafted_per_depth=sum_depths([each.drafted_per_depth for each in stats]),
        accepted_per_depth=sum_depths([each.accepted_per_depth for each in stats]),
        state="" if mode.is_peer else _join({str(each.state) for each in stats}),
        reason=_join({each.reason for each in stats}),
    )


def sum_depths(depths: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the sums by depth; shorter sequences count as 0 beyond their ends."""
    longest = max(map(len, depths), default=0)
    return tuple(sum(each[i] for each in depths if i < len(each)) for i in range(longest))


def _join(words: set[str]) -> str:
    return ", ".join(sorted(words - {""}))


# --------------------------------------------------------------------------- grids


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
    n_left_out: prompts without such a row.  max_cached: cached prompt tokens of any run.
    """

    workload: str
    temperature: float
    streams: int
    modes: tuple[Mode, ...]
    rows: Mapping[int, Mapping[Mode, Run]]
    n_left_out: int = 0
    max_cached: int = 0

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
            max_cached=max(run.n_cached for run in runs),
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
