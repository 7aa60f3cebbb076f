"""What history says of a pair on this machine: whether it pays, loses, or is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from specd.core import BandHistory, DrafterKind
from specd.pairs.history import Entry, History
from specd.pairs.retries import PairKey
from specd.store.identity import identities_of, identity_of

#: A pair loses only after so many requests and guesses.  One text may be hard to guess; twenty
#: answers cover several texts.  200 guesses give the accepted share to within 3.5 points.
ENOUGH_REQUESTS: Final = 20
ENOUGH_GUESSES: Final = 200


class Standing(Enum):
    PAYS = "pays"
    LOSES = "loses"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """gain: of the best band of temperatures (tokens/s ÷ plain), None where nothing was tried.

    n_answers_left: if the pair loses, answers without the drafter until it is tried again.
    n_retries: how often it was tried again so far.
    """

    standing: Standing = Standing.UNKNOWN
    gain: float | None = None
    n_requests: int = 0
    n_guessed: int = 0
    n_kept: int = 0
    n_answers_left: int = 0
    n_retries: int = 0


NOTHING_KNOWN: Final = Verdict()


class Verdicts:
    """machine: as in the history's keys.  A file that has not changed is not read again."""

    def __init__(self, history: History | None, machine: str) -> None:
        self._history = history
        self._machine = machine
        self._known: Sequence[Entry] | None = None
        self._n_looks = 0
        self._by_pair: dict[PairKey, list[Entry]] = {}

    def of(self, target: Path, adapters: Iterable[Path], drafter: Path) -> Verdict:
        """Judge a pair by all loads of these weights, whatever their settings."""
        if self._history is None or not self._history.known():
            return NOTHING_KNOWN
        try:
            pair = PairKey(
                identity_of(target), identity_of(drafter), self._machine, identities_of(adapters)
            )
        except OSError:
            return NOTHING_KNOWN
        # Read before the figures: an answer judged by old figures must not count in a new wait.
        retry = self._history.retry(pair)
        self._look(self._history)
        verdict = judge(b for entry in self._by_pair.get(pair, ()) for b in entry.history.bands)
        if verdict.standing is not Standing.LOSES:
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
        by_pair: dict[PairKey, list[Entry]] = {}
        for entry in known:
            if entry.key.machine == self._machine and entry.key.drafter:
                by_pair.setdefault(entry.key.pair, []).append(entry)
        self._by_pair, self._known = by_pair, known
        self._n_looks += 1


def judge(bands: Iterable[BandHistory]) -> Verdict:
    """A pair loses where every band that was tried did; one band that gains is worth the drafter.

    A band that ended parked has a gain below 1 (it is parked no longer than that).
    """
    tried = [
        (band, band.gain)
        for band in bands
        if band.drafter == DrafterKind.MODEL and band.n_drafted and band.gain is not None
    ]
    n_requests = sum(band.n_requests for band, _ in tried)
    n_guessed = sum(band.n_drafted for band, _ in tried)
    standing = Standing.UNKNOWN
    if any(band.n_drafted >= ENOUGH_GUESSES and gain > 1.0 for band, gain in tried):
        standing = Standing.PAYS
    elif (
        n_requests >= ENOUGH_REQUESTS
        and n_guessed >= ENOUGH_GUESSES
        and all(gain < 1.0 for _, gain in tried)
    ):
        standing = Standing.LOSES
    return Verdict(
        standing=standing,
        gain=max((gain for _, gain in tried), default=None),
        n_requests=n_requests,
        n_guessed=n_guessed,
        n_kept=min(sum(band.n_accepted for band, _ in tried), n_guessed),
    )
