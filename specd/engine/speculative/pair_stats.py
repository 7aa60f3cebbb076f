"""Statistics of a pair over all its requests, and the history that the daemon saves of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from specd.core import BandHistory, DrafterKind, PairHistory
from specd.engine.speculative.acceptance import Acceptance, Estimate
from specd.engine.speculative.budget import ProbeBudget
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.drafter_stats import DOES_NOT_PAY, UNTRIED_WORTH, DrafterStats, Worth
from specd.ipc.messages import PairHistoryUpdate

#: Weight of all earlier requests together beside a new one, in plain passes.
_EARLIER_PASSES = 200.0
#: Largest weight of an estimate from before a restart, in observations.
_TRUSTED = 4.0
#: Memory of the running mean of a draft's worth, in drafts.
_WORTH_MEMORY = 32.0
#: Share by which the worth returns to UNTRIED_WORTH with each request that could not probe.
_UNTRIED_SHARE = 1.0 / 16.0
#: Largest gain taken from a history, so that a damaged one does no harm.
_MAX_GAIN = 32.0
#: Seconds between two reports while requests run.
REPORT_INTERVAL_S: Final = 1.0


@dataclass(slots=True)
class BandStats:
    """Statistics of one drafter in one temperature band.

    tokens: of the steps in which it drafted.  passes: number of plain passes that take as long as
    these steps.  The newest requests count most in both.  worth: tokens that a draft is expected
    to add, less its price.  probes: the budget for probes while the drafter is parked.
    """

    acceptance: Acceptance
    worth: Worth = field(default_factory=Worth)
    probes: ProbeBudget = field(default_factory=ProbeBudget)
    tokens: float = 0.0
    passes: float = 0.0
    n_requests: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def gain(self) -> float | None:
        """Return tokens/s ÷ plain tokens/s; None while unknown."""
        return self.tokens / self.passes if self.passes else None

    @property
    def parked(self) -> str:
        """Return why a new request starts parked; "" if drafting should pay."""
        return DOES_NOT_PAY if self.worth.mean <= 0.0 else ""

    def observe_worth(self, worth: float) -> None:
        self.worth.add(worth, _WORTH_MEMORY)

    def end_request(self, stats: DrafterStats, *, is_probe_unaffordable: bool) -> None:
        """Add the statistics of a request that has ended."""
        if is_probe_unaffordable and not stats.speed.steps:
            # Otherwise requests in which probes are too expensive would park the drafter for ever.
            self.worth.mean += (UNTRIED_WORTH - self.worth.mean) * _UNTRIED_SHARE
        self.n_requests += 1
        self.n_drafted += stats.n_drafted
        self.n_accepted += stats.n_accepted
        # Prefer measured times to estimates.
        measured, speed = stats.measured, stats.speed
        if measured.n_steps:
            self._add_gain(measured.tokens, measured.passes)
        elif speed.steps:
            self._add_gain(speed.gain * speed.steps, speed.steps)

    def _add_gain(self, tokens: float, passes: float) -> None:
        if self.passes > _EARLIER_PASSES:
            self.tokens *= _EARLIER_PASSES / self.passes
            self.passes = _EARLIER_PASSES
        self.tokens += tokens
        self.passes += passes


class PairStats:
    """The statistics of a pair by drafter and temperature band, created on first use."""

    def __init__(self, history: PairHistory | None) -> None:
        self._bands: dict[tuple[DrafterKind, int], BandStats] = {}
        for band in history.bands if history is not None else ():
            if band.drafter in set(DrafterKind):
                kind = DrafterKind(band.drafter)
                self._bands[kind, band.band] = _restored(kind, band)

    def of(self, kind: DrafterKind, band: int) -> BandStats:
        key = kind, band
        if key not in self._bands:
            self._bands[key] = BandStats(Acceptance.of(kind))
        return self._bands[key]

    def history(self, costs: CostModel) -> PairHistory:
        """Return the statistics and the costs of target passes in the form that is saved."""
        target_s, _, _ = costs.measured()
        return PairHistory(
            bands=tuple(_history(*key, self._bands[key]) for key in sorted(self._bands)),
            target_s=tuple(target_s.items()),
        )


def _history(kind: DrafterKind, band: int, band_stats: BandStats) -> BandHistory:
    return BandHistory(
        drafter=kind,
        band=band,
        by_confidence=_pairs(band_stats.acceptance.by_confidence),
        by_depth=_pairs(band_stats.acceptance.by_depth),
        parked=band_stats.parked,
        gain=band_stats.gain,
        n_requests=band_stats.n_requests,
        n_drafted=band_stats.n_drafted,
        n_accepted=band_stats.n_accepted,
    )


def _pairs(estimates: Sequence[Estimate]) -> tuple[tuple[float, float], ...]:
    return tuple((estimate.mean, estimate.weight) for estimate in estimates)


def _restored(kind: DrafterKind, band: BandHistory) -> BandStats:
    """Return the statistics that a history holds for one band.

    Chances by depth start anew: a few drafts teach them, and wrong ones would prevent long drafts.
    """
    acceptance = Acceptance.of(kind)
    # With another number of bins, another version wrote the history.
    if len(band.by_confidence) == len(acceptance.by_confidence):
        acceptance.by_confidence = [
            Estimate(min(max(mean, 0.0), 1.0), min(max(weight, 0.0), _TRUSTED))
            for mean, weight in band.by_confidence
        ]
    return BandStats(
        acceptance,
        tokens=min(max(band.gain or 0.0, 0.0), _MAX_GAIN) * _EARLIER_PASSES,
        passes=_EARLIER_PASSES if band.gain else 0.0,
        n_requests=band.n_requests,
        n_drafted=band.n_drafted,
        n_accepted=band.n_accepted,
    )


class HistoryReporter:
    """A reporter that emits the history of a pair when it has changed."""

    def __init__(
        self,
        history: Callable[[], PairHistory],
        device: str,
        emit: Callable[[PairHistoryUpdate], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Note the current history as reported.  device: that of the target."""
        self._history = history
        self._device = device
        self._emit = emit
        self._clock = clock
        self._reported = self._current_history()
        self._reported_at = clock()

    def report_changes(self, is_busy: bool) -> None:
        """Emit the history if it changed: at once if idle, else every REPORT_INTERVAL_S."""
        now = self._clock()
        if is_busy and now - self._reported_at < REPORT_INTERVAL_S:
            return
        newest = self._current_history()
        if newest != self._reported:
            self._reported, self._reported_at = newest, now
            self._emit(PairHistoryUpdate(newest))

    def _current_history(self) -> PairHistory:
        return replace(self._history(), device=self._device)


def history_for_device(history: PairHistory | None, device: str) -> PairHistory | None:
    """Return the history, or None if another device made it, where gains are different."""
    return history if history is not None and history.device == device else None
