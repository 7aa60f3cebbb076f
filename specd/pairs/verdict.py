"""What history says of a pair on this machine: whether it pays, loses, or nobody knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from specd.core import BandHistory, DrafterKind
from specd.pairs.history import Entry, History
from specd.store.identity import identities_of, identity_of

#: Fewer requests or guesses say nothing against a pair.  A request that loses parks its drafter
#: after 4 to 24 steps and the next ones only probe, so that a hopeless pair makes a hundred guesses
#: in some twenty requests; and of a hundred the share that was kept is known to five points.
ENOUGH_REQUESTS: Final = 20
ENOUGH_GUESSES: Final = 100
#: What was measured longer ago than this is not known any more: models, drivers and what is asked
#: change, so a pair that was dropped is tried again in a month.
LATELY_S: Final = 30 * 24 * 3600.0


class Standing(Enum):
    PAYS = "pays"
    LOSES = "loses"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """gain: of the best band of temperatures (tokens/s ÷ plain), None where nothing was tried."""

    standing: Standing = Standing.UNKNOWN
    gain: float | None = None
    n_requests: int = 0
    n_guessed: int = 0
    n_kept: int = 0


NOTHING_KNOWN: Final = Verdict()

_Pair = tuple[str, tuple[str, ...], str]


class Verdicts:
    """machine: as in the history's keys.  unix_time: seconds.  Asks no file twice in vain."""

    def __init__(
        self,
        history: History | None,
        machine: str,
        *,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._history = history
        self._machine = machine
        self._unix_time = unix_time
        self._known: Sequence[Entry] | None = None
        self._n_looks = 0
        self._by_pair: dict[_Pair, list[Entry]] = {}

    def of(self, target: Path, adapters: Iterable[Path], drafter: Path) -> Verdict:
        """All that was loaded with these weights, however it was loaded."""
        if self._history is None:
            return NOTHING_KNOWN
        self._look(self._history)
        if not self._by_pair:
            return NOTHING_KNOWN
        try:
            pair = identity_of(target), identities_of(adapters), identity_of(drafter)
        except OSError:
            return NOTHING_KNOWN
        now = self._unix_time()
        # What is of a time that has yet to come was learned while the clock was wrong.
        known = self._by_pair.get(pair, ())
        lately = [entry for entry in known if abs(now - entry.used_at) <= LATELY_S]
        return judge(band for entry in lately for band in entry.history.bands)

    def stamp(self) -> object:
        """Equal as long as no verdict can have changed; it does at least once an hour."""
        if self._history is None:
            return None
        self._look(self._history)
        return self._n_looks, int(self._unix_time() // 3600)

    def _look(self, history: History) -> None:
        known = history.known()
        if known is self._known:
            return
        by_pair: dict[_Pair, list[Entry]] = {}
        for entry in known:
            if entry.key.machine == self._machine and entry.key.drafter:
                pair = entry.key.target, entry.key.adapters, entry.key.drafter
                by_pair.setdefault(pair, []).append(entry)
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
