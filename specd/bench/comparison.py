"""The figures of one workload: medians and ranges of each mode, and ratios between modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Kind, Mode
from specd.bench.runs import Grid, MedianRange, Run, grids, sum_depths


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFigures:
    """The figures of one mode on one workload.

    ratio: to plain decoding, prompt by prompt.  total_per_s: all tokens over all seconds.
    looked_up: drafted tokens that prompt lookup found.  n_same_text: how many of n_answers have
    the text of plain decoding.
    """

    mode: Mode
    tokens_per_s: MedianRange
    ratio: MedianRange
    total_per_s: float
    drafted: int
    accepted: int
    looked_up: int
    looked_up_accepted: int
    mean_draft_length: float
    drafted_per_depth: tuple[int, ...]
    accepted_per_depth: tuple[int, ...]
    n_same_text: int
    n_answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All modes on one workload at one temperature and number of streams.

    Ratios are taken prompt by prompt and None where a mode of theirs did not run.
    best_fixed: the fixed length with the highest median ratio to plain on this workload.
    hindsight: the better of plain and best_fixed, chosen after the bench.
    best_peer_draft: the best of the peer's drafting modes.  best_peer: its plain mode included.
    overhead_ms: of plain decoding, per token.  n_left_out: prompts with too short an answer.
    """

    workload: str
    temperature: float
    streams: int
    modes: tuple[ModeFigures, ...]
    best_fixed: Mode | None = None
    hindsight: Mode | None = None
    best_peer_draft: Mode | None = None
    best_peer: Mode | None = None
    auto_to_plain: MedianRange | None = None
    auto_to_best_fixed: MedianRange | None = None
    auto_to_hindsight: MedianRange | None = None
    plain_to_peer_plain: MedianRange | None = None
    auto_to_peer_plain: MedianRange | None = None
    auto_to_peer_draft: MedianRange | None = None
    auto_to_peer_best: MedianRange | None = None
    overhead_ms: MedianRange | None = None
    n_left_out: int = 0
    max_cached: int = 0

    def of_mode(self, name: str) -> ModeFigures | None:
        return next((figures for figures in self.modes if figures.mode.name == name), None)


#: Chooses the mode to compare with on one workload; None where no such mode ran.
BestMode = Callable[[Grid], Mode | None]


def best_fixed(grid: Grid) -> Mode | None:
    return grid.best(grid.of_kind(Kind.FIXED))


def hindsight(grid: Grid) -> Mode | None:
    return grid.best(grid.of_kind(Kind.PLAIN, Kind.FIXED))


def best_peer_draft(grid: Grid) -> Mode | None:
    return grid.best(grid.of_kind(Kind.PEER_DRAFT))


def best_peer(grid: Grid) -> Mode | None:
    return grid.best(grid.of_kind(Kind.PEER_PLAIN, Kind.PEER_DRAFT))


def compare(runs: Iterable[Run]) -> tuple[Comparison, ...]:
    """Return one comparison per workload, temperature and number of streams, in run order.

    Plain must be among the modes.
    """
    return tuple(map(_compare, grids(runs)))


def _compare(grid: Grid) -> Comparison:
    bare = Comparison(
        workload=grid.workload,
        temperature=grid.temperature,
        streams=grid.streams,
        modes=(),
        n_left_out=grid.n_left_out,
        max_cached=grid.max_cached,
    )
    if not grid.rows:
        return bare
    overheads = [row[PLAIN].overhead_ms for row in grid.rows.values()]
    return replace(
        bare,
        modes=tuple(_figures(mode, grid) for mode in grid.modes),
        best_fixed=best_fixed(grid),
        hindsight=hindsight(grid),
        best_peer_draft=best_peer_draft(grid),
        best_peer=best_peer(grid),
        auto_to_plain=_ratio_to(grid, AUTO, PLAIN),
        auto_to_best_fixed=_ratio_to(grid, AUTO, best_fixed(grid)),
        auto_to_hindsight=_ratio_to(grid, AUTO, hindsight(grid)),
        plain_to_peer_plain=_ratio_to(grid, PLAIN, PEER_PLAIN),
        auto_to_peer_plain=_ratio_to(grid, AUTO, PEER_PLAIN),
        auto_to_peer_draft=_ratio_to(grid, AUTO, best_peer_draft(grid)),
        auto_to_peer_best=_ratio_to(grid, AUTO, best_peer(grid)),
        overhead_ms=MedianRange.of(ms for ms in overheads if ms is not None),
    )


def _ratio_to(grid: Grid, mode: Mode, best_mode: Mode | None) -> MedianRange | None:
    if mode not in grid.modes or best_mode not in grid.modes:
        return None
    return MedianRange.of(grid.ratios(mode, best_mode))


def _figures(mode: Mode, grid: Grid) -> ModeFigures:
    runs = [row[mode] for row in grid.rows.values()]
    speeds = MedianRange.of(run.tokens_per_s for run in runs)
    ratios = MedianRange.of(grid.ratios(mode, PLAIN))
    assert speeds is not None
    assert ratios is not None
    drafted = sum(run.n_drafted for run in runs)
    rounds = sum(run.rounds for run in runs)
    return ModeFigures(
        mode=mode,
        tokens_per_s=speeds,
        ratio=ratios,
        total_per_s=grid.speed(mode),
        drafted=drafted,
        accepted=sum(run.n_accepted for run in runs),
        looked_up=sum(run.n_looked_up for run in runs),
        looked_up_accepted=sum(run.n_looked_up_accepted for run in runs),
        mean_draft_length=drafted / rounds if rounds else 0.0,
        drafted_per_depth=sum_depths([run.drafted_per_depth for run in runs]),
        accepted_per_depth=sum_depths([run.accepted_per_depth for run in runs]),
        n_same_text=sum(_n_same(row[mode], row[PLAIN]) for row in grid.rows.values()),
        n_answers=sum(run.streams for run in runs),
    )


def _n_same(run: Run, other: Run) -> int:
    return sum(a == b for a, b in zip(run.texts, other.texts, strict=True))
