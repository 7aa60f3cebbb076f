"""What a controller knows of its pair beyond single requests, and what is kept across restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.core import BandHistory, DrafterKind, PairHistory
from specd.engine.speculative.acceptance import Acceptance, Estimate
from specd.engine.speculative.budget import ProbeBudget
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.drafter_stats import DOES_NOT_PAY, UNTRIED_WORTH, DrafterStats, Worth

#: What all earlier requests together count as beside a new one, in plain passes.
_EARLIER_PASSES = 200.0
#: What was learned before a restart counts as no more observations than this.
_TRUSTED = 4.0
#: Drafts that the running mean of what a draft is worth remembers.
_WORTH_MEMORY = 32.0
#: Share of the way back to that, with each request that could not try the drafter.
_UNTRIED_SHARE = 1.0 / 16.0
#: No pass gives more tokens: what a damaged history claims must not drive new requests.
_MAX_GAIN = 32.0


@dataclass(slots=True)
class BandStats:
    """One drafter in one band of temperatures.

    tokens, passes: of the steps that it drafted for, and how many plain passes would have taken as
    long; the newest requests count most.  worth: what a draft is expected to add, in tokens.
    probes: what may be spent on trying again while that is nothing.
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
        """Tokens/s ÷ plain tokens/s; None while unknown."""
        return self.tokens / self.passes if self.passes else None

    @property
    def parked(self) -> str:
        """The reason why a new request begins with a probe, "" where drafting should pay."""
        return DOES_NOT_PAY if self.worth.mean <= 0.0 else ""

    def observe_worth(self, worth: float) -> None:
        self.worth.add(worth, _WORTH_MEMORY)

    def end_request(self, stats: DrafterStats, *, is_probe_unaffordable: bool) -> None:
        """Add what a request came to.

        is_shut_out: it was too dear to probe the drafter.  Where it never drafted, nothing can show
        that it pays, so that what was known of it fades, and later requests try it as a new one.
        """
        if is_probe_unaffordable and not stats.speed.steps:
            self.worth.mean += (UNTRIED_WORTH - self.worth.mean) * _UNTRIED_SHARE
        self.n_requests += 1
        self.n_drafted += stats.n_drafted
        self.n_accepted += stats.n_accepted
        # As measured by the clock, else as the costs say.
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
    """Bands by drafter; made when first asked for, or taken from a history."""

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
    """If the number of bins differs, another version wrote the file; then only its gain is used.

    Chances by depth are learned anew in a few drafts, and wrong ones would hinder long drafts.
    """
    acceptance = Acceptance.of(kind)
    if len(band.by_confidence) == len(acceptance.by_confidence):
        acceptance.by_confidence = _estimates(band.by_confidence)
    return BandStats(
        acceptance,
        tokens=min(max(band.gain or 0.0, 0.0), _MAX_GAIN) * _EARLIER_PASSES,
        passes=_EARLIER_PASSES if band.gain else 0.0,
        n_requests=band.n_requests,
        n_drafted=band.n_drafted,
        n_accepted=band.n_accepted,
    )


def _estimates(pairs: Sequence[tuple[float, float]]) -> list[Estimate]:
    return [
        Estimate(min(max(mean, 0.0), 1.0), min(max(weight, 0.0), _TRUSTED))
        for mean, weight in pairs
    ]
