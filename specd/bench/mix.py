"""The figures of all workloads together: geometric means of ratios, and tokens per second."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specd.bench.comparison import BestMode, best_fixed, best_peer, best_peer_draft, hindsight
from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Kind, Mode
from specd.bench.runs import Grid, Run, geometric_mean, grids
from specd.bench.workload import HOSTILE

#: Resamples for the bootstrap interval, and the share of repetitions that it should contain.
_N_RESAMPLES = 400
_SHARE = 0.90


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much faster one mode is than another.

    value: geometric mean over the workloads of each workload's median ratio.
    low, high: the 90 % interval for other prompts, by bootstrap; None where every workload had a
    single prompt.  by_total: the ratio of tokens per second over all workloads.
    """

    value: float
    low: float | None
    high: float | None
    by_total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixFigures:
    """One mode over all workloads; tokens_per_s: all tokens over all seconds."""

    mode: Mode
    ratio: Ratio
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """All workloads but the hostile one, at one temperature and number of streams.

    Some ratios compare each workload with its own best mode: best_fixed, hindsight, peer_draft and
    peer_best.  Others compare all with one mode, the best on the whole mix: single_fixed here,
    single_peer on the peer.
    """

    temperature: float
    streams: int
    workloads: tuple[str, ...]
    modes: tuple[MixFigures, ...]
    single_fixed: Mode | None = None
    single_peer: Mode | None = None
    auto_to_plain: Ratio | None = None
    auto_to_best_fixed: Ratio | None = None
    auto_to_single_fixed: Ratio | None = None
    auto_to_hindsight: Ratio | None = None
    plain_to_peer_plain: Ratio | None = None
    auto_to_peer_plain: Ratio | None = None
    auto_to_peer_draft: Ratio | None = None
    auto_to_peer_single: Ratio | None = None
    auto_to_peer_best: Ratio | None = None

    def of_mode(self, name: str) -> MixFigures | None:
        return next((figures for figures in self.modes if figures.mode.name == name), None)


def mixes(runs: Iterable[Run]) -> tuple[Mix, ...]:
    """Return one mix per temperature and number of streams, in run order."""
    return tuple(map(_mix, _group_grids(runs).values()))


def mix_ratio(
    runs: Iterable[Run], streams: int, temperature: float, mode: Mode, best_mode: Mode
) -> Ratio | None:
    """Return the ratio of two modes on the mix, or None where a workload lacks one of them."""
    parts = _group_grids(runs).get((streams, temperature))
    return _ratio(parts, mode, lambda _: best_mode) if parts else None


def _group_grids(runs: Iterable[Run]) -> dict[tuple[int, float], list[Grid]]:
    """Return the grids of each mix by (streams, temperature)."""
    together: dict[tuple[int, float], list[Grid]] = {}
    for grid in grids(runs):
        if grid.rows and grid.workload != HOSTILE:
            together.setdefault((grid.streams, grid.temperature), []).append(grid)
    return together


def _mix(parts: Sequence[Grid]) -> Mix:
    single_fixed = _best_single_mode(parts, Kind.FIXED)
    single_peer = _best_single_mode(parts, Kind.PEER_DRAFT)
    return Mix(
        temperature=parts[0].temperature,
        streams=parts[0].streams,
        workloads=tuple(grid.workload for grid in parts),
        modes=tuple(_figures(parts, mode) for mode in _common(parts)),
        single_fixed=single_fixed,
        single_peer=single_peer,
        auto_to_plain=_ratio(parts, AUTO, lambda _: PLAIN),
        auto_to_best_fixed=_ratio(parts, AUTO, best_fixed),
        auto_to_single_fixed=_ratio(parts, AUTO, lambda _: single_fixed),
        auto_to_hindsight=_ratio(parts, AUTO, hindsight),
        plain_to_peer_plain=_ratio(parts, PLAIN, lambda _: PEER_PLAIN),
        auto_to_peer_plain=_ratio(parts, AUTO, lambda _: PEER_PLAIN),
        auto_to_peer_draft=_ratio(parts, AUTO, best_peer_draft),
        auto_to_peer_single=_ratio(parts, AUTO, lambda _: single_peer),
        auto_to_peer_best=_ratio(parts, AUTO, best_peer),
    )


def _common(parts: Sequence[Grid]) -> list[Mode]:
    """Return the modes that every workload ran."""
    return [mode for mode in parts[0].modes if all(mode in grid.modes for grid in parts)]


def _best_single_mode(parts: Sequence[Grid], kind: Kind) -> Mode | None:
    """Return the mode of that kind with the best mean ratio to plain over all workloads."""
    candidates = [mode for mode in _common(parts) if mode.kind is kind]
    return max(
        candidates,
        key=lambda mode: geometric_mean(grid.ratio(mode, PLAIN) for grid in parts),
        default=None,
    )


def _figures(parts: Sequence[Grid], mode: Mode) -> MixFigures:
    ratio = _ratio(parts, mode, lambda _: PLAIN)
    assert ratio is not None
    return MixFigures(mode=mode, ratio=ratio, tokens_per_s=_total([(g, mode) for g in parts]))


def _ratio(parts: Sequence[Grid], mode: Mode, best_mode: BestMode) -> Ratio | None:
    """Return the ratio, or None where a workload lacks either mode."""
    chosen = []
    for grid in parts:
        other = best_mode(grid)
        if other is None or not {mode, other} <= set(grid.modes):
            return None
        chosen.append((grid, other))
    by_workload = [grid.ratios(mode, other) for grid, other in chosen]
    low, high = _interval(by_workload)
    return Ratio(
        value=geometric_mean(map(statistics.median, by_workload)),
        low=low,
        high=high,
        by_total=_total([(grid, mode) for grid in parts]) / _total(chosen),
    )


def _interval(by_workload: Sequence[Sequence[float]]) -> tuple[float, float] | tuple[None, None]:
    """Return the bootstrap interval of the geometric mean; deterministic.

    A workload has few prompts, so deviations are resampled from those of all workloads.
    """
    centres = [geometric_mean(ratios) for ratios in by_workload]
    deviations = [
        math.log(ratio / centre) * math.sqrt(len(ratios) / (len(ratios) - 1))
        for centre, ratios in zip(centres, by_workload, strict=True)
        for ratio in ratios
        if len(ratios) > 1
    ]
    if not deviations:
        return None, None
    chance = random.Random(0)  # noqa: S311 - repeatable, no secret
    shifts = sorted(
        statistics.fmean(
            statistics.median(chance.choices(deviations, k=len(ratios))) for ratios in by_workload
        )
        for _ in range(_N_RESAMPLES)
    )
    value = geometric_mean(map(statistics.median, by_workload))
    n_beyond = round(_N_RESAMPLES * (1 - _SHARE) / 2)
    return value * math.exp(shifts[n_beyond]), value * math.exp(shifts[-1 - n_beyond])


def _total(chosen: Sequence[tuple[Grid, Mode]]) -> float:
    """Return tokens per second of these modes over all their workloads."""
    runs = [row[mode] for grid, mode in chosen for row in grid.rows.values()]
    return sum(run.n_timed for run in runs) / sum(run.seconds for run in runs)
