"""Decide when a drafter that did not pay is tried again: after a number of answers without it.

A trial of a useless drafter takes 20 to 40 answers, each of which loses at most 5 % and two passes
(the controller's loss budget).  With 200 answers between trials that is about 1 % of the time, and
a quarter of that once the wait has grown.  Answers are counted, not days: with a monthly retry, a
model that is used once a month would try its drafter at each use, a busy one far too rarely.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

import msgspec

from specd.core import DrafterKind, PairHistory

#: Answers without the drafter before its first retry.
FIRST_WAIT: Final = 200
#: Each retry that lost doubles the next wait, at most this many times.
MOST_DOUBLINGS: Final = 2
_MAX_COUNT: Final = 2**53

_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]


class PairKey(msgspec.Struct, frozen=True):
    """The identity of a pair on one machine, for all settings of its load.

    target, drafter, adapters: as `file_identity` returns.  machine: its name.
    """

    target: str
    drafter: str
    machine: str
    adapters: tuple[str, ...] = ()


class Retry(msgspec.Struct, frozen=True):
    """The count of answers towards the next retry of a pair that lost.

    n_answers: answers of the target without the drafter, since the pair lost the last time.
    n_retries: retries so far.
    """

    pair: PairKey
    n_answers: _Count = 0
    n_retries: _Count = 0

    @property
    def n_answers_left(self) -> int:
        """Answers without the drafter until the next retry, at least 1."""
        n_doublings = min(self.n_retries, MOST_DOUBLINGS)
        return max((FIRST_WAIT << n_doublings) - self.n_answers, 1)

    def after_answer(self) -> Retry:
        """Return the count after one more answer; the last answer of a wait starts the retry."""
        if self.n_answers_left > 1:
            return Retry(self.pair, self.n_answers + 1, self.n_retries)
        return Retry(self.pair, 0, min(self.n_retries + 1, _MAX_COUNT))


def newest(pair: PairKey, *counts: Retry | None) -> Retry:
    """Return the count that is furthest along, or a new one if there is none.

    Two daemons that share a file may count at the same time.  The larger count is kept, not the
    sum: that could count an answer twice, and a retry must not come too early.
    """
    known = [count for count in counts if count is not None]
    return max(known, key=lambda count: (count.n_retries, count.n_answers), default=Retry(pair))


def without_drafter(history: PairHistory) -> PairHistory:
    """Return the history without the drafter's figures: a retry starts as a new pair does."""
    kept = tuple(band for band in history.bands if band.drafter != DrafterKind.MODEL)
    return replace(history, bands=kept)
