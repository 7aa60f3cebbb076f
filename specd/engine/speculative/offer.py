"""A draft that a request could send in one step, and how much of it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from specd.core import DrafterKind
from specd.engine.speculative.drafter import Places
from specd.engine.speculative.siblings import Candidates, Share, sibling_worths
from specd.engine.speculative.track import Track


@dataclass(frozen=True, slots=True)
class Offer:
    """chances: of each token, with those before it.  rate: the request's tokens per second.

    n: tokens that are sent.  siblings: indices of the tokens beside which one is sent.
    """

    drafter: str
    rate: float
    chances: Sequence[float]
    track: Track | None
    n: int = 0
    siblings: Sequence[int] = ()

    @property
    def n_rows(self) -> int:
        return self.n + len(self.siblings)

    def candidates(self, place: Places, chance: float, row_price: float) -> Candidates:
        """Return the rows that could be sent, each with its worth in tokens.

        chance: of a sibling whose token is wrong.  row_price: of one that is read again.
        """
        if self.drafter != DrafterKind.MODEL:
            return Candidates(self.chances)
        worths = sibling_worths(self.chances, place.at, chance, row_price)
        return Candidates(self.chances, worths, place.n_leaves, place.n_rows)

    def take(self, share: Share) -> Offer:
        """Send that much, or as much less as the threshold allows."""
        n = share.n
        if self.track is not None:
            expected = list(accumulate(self.chances[:n]))
            while n and not self.track.allows(n, expected[n - 1]):
                n -= 1
        return replace(self, n=n, siblings=[at for at in share.siblings if at <= n])

    def shorter(self) -> Offer:
        """Send one row less: the deepest, of siblings before tokens."""
        if self.siblings:
            return replace(self, siblings=self.siblings[:-1])
        return replace(self, n=self.n - 1)
