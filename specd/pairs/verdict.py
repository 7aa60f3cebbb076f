"""Judge from the history whether a pair pays or loses on this machine, or is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from specd.core import BandHistory, DrafterKind
from specd.pairs.history import History, HistoryEntry, PairKey

#: Least requests and drafted tokens before a pair can lose.  One text may be hard to draft; twenty
#: answers cover several texts.  200 tokens give the accepted share to within 3.5 points.
MIN_REQUESTS: Final = 20
MIN_DRAFTED: Final = 200


class PairOutcome(Enum):
    PAYS = "pays"
    LOSES = "loses"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one pair.

    gain: tokens/s ÷ plain in the best band of temperatures, None if nothing was tried.
    n_answers_left: if the pair loses, answers without the drafter until it is tried again.
    n_retries: retries so far.
    """

    outcome: PairOutcome = PairOutcome.UNKNOWN
    gain: float | None = None
    n_requests: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_answers_left: int = 0
    n_retries: int = 0


UNKNOWN_VERDICT: Final = Verdict()


class Verdicts:
    """The judgements of all pairs, cached until the history changes.

    machine: this machine's name in the history's keys.
    """

    def __init__(self, history: History | None, machine: str) -> None:
        self._history = history
        self._machine = machine
        self._known: Sequence[HistoryEntry] | None = None
        self._n_looks = 0
        self._by_pair: dict[PairKey, list[HistoryEntry]] = {}

    def of(self, target: Path, adapters: Iterable[Path], drafter: Path) -> Verdict:
        """Judge a pair by all loads of these weights, whatever their settings."""
        if self._history is None or not self._history.known():
            return UNKNOWN_VERDICT
        try:
            pair = PairKey.of(target, adapters, drafter, self._machine)
        except OSError:
            return UNKNOWN_VERDICT
        # Read before the figures: an answer judged by old figures must not count in a new wait.
        retry = self._history.retry(pair)
        self._look(self._history)
        verdict = judge(b for entry in self._by_pair.get(pair, ()) for b in entry.history.bands)
        if verdict.outcome is not PairOutcome.LOSES:
            return verdict
        return replace(verdict, n_answers_left=retry.n_answers_left, n_retries=retry.n_retries)

    def stamp(self) -> object:
        """Return a value that stays equal as long as no verdict can have changed."""
        if self._history is None:
            return None
        self._look(self._history)
        return self._n_looks

    def _look(self, history: History) -> None:
        known = history.known()
        if known is self._known:
            return
        by_pair: dict[PairKey, list[HistoryEntry]] = {}
        for entry in known:
            if entry.key.machine == self._machine and entry.key.drafter:
                by_pair.setdefault(entry.key.pair, []).append(entry)
        self._by_pair, self._known = by_pair, known
        self._n_looks += 1


def judge(bands: Iterable[BandHistory]) -> Verdict:
    """Judge a pair: it loses if every band that was tried lost; one gaining band keeps the drafter.

    A band that ended parked has a gain below 1 (it is parked no longer than that).
    """
    tried = [
        (band, band.gain)
        for band in bands
        if band.drafter == DrafterKind.MODEL and band.n_drafted and band.gain is not None
    ]
    n_requests = sum(band.n_requests for band, _ in tried)
    n_drafted = sum(band.n_drafted for band, _ in tried)
    outcome = PairOutcome.UNKNOWN
    if any(band.n_drafted >= MIN_DRAFTED and gain > 1.0 for band, gain in tried):
        outcome = PairOutcome.PAYS
    elif (
        n_requests >= MIN_REQUESTS
        and n_drafted >= MIN_DRAFTED
        and all(gain < 1.0 for _, gain in tried)
    ):
        outcome = PairOutcome.LOSES
    return Verdict(
        outcome=outcome,
        gain=max((gain for _, gain in tried), default=None),
        n_requests=n_requests,
        n_drafted=n_drafted,
        n_accepted=min(sum(band.n_accepted for band, _ in tried), n_drafted),
    )
