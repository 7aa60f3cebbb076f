"""What drafts of each length are worth to one request in one step, in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.track import Track

#: How far ahead of the tokens drafted so far a longer draft is still considered.
_LOOKAHEAD = 8


@dataclass(frozen=True, slots=True)
class Best:
    """A length, and how many tokens it is worth more than a plain step; 0 where none is."""

    n: int = 0
    worth: float = 0.0


class Prospect:
    """The prices of one step, and the draft that grows in it.

    Worth of a draft of length k: tokens(k) − λ·(seconds(k) − seconds(0)) − 1, with λ the request's
    tokens per second: zero for a plain step.
    """

    def __init__(
        self, costs: CostModel, speed: float, n_missed: int, n_others: int, other_rows: int
    ) -> None:
        """speed: recent tokens per second of the request.

        n_missed: tokens the draft model must read first.  n_others, other_rows: other slots in the
        pass, and the rows they bring.
        """
        self._costs = costs
        self._n_others = n_others
        self._undrafted = other_rows + 1
        self._base_s = costs.target_s(self._undrafted)
        #: Seconds of a plain step that this slot answers for: an equal share of the pass.
        self.plain_s = self._base_s / (n_others + 1)
        # Never less than what plain decoding gives.
        self._rate = max(1.0 / self.plain_s, speed)
        self._n_missed = n_missed
        self._pass_s = [self.plain_s]
        self._n, self._chance, self._tokens = 0, 1.0, 1.0
        self._best = Best()

    def pass_s(self, n_draft: int) -> float:
        """Seconds of a pass with a draft: the share without it, and all that the draft adds."""
        while len(self._pass_s) <= n_draft:
            width = self._undrafted + len(self._pass_s)
            added_s = self._costs.target_s(width) - self._base_s
            self._pass_s.append(self.plain_s + max(added_s, 0.0))
        return self._pass_s[n_draft]

    def draft_s(self, n_tokens: int) -> float:
        """Seconds of drafting that this slot answers for: drafter passes are shared as well."""
        return self._costs.draft_s(n_tokens, self._n_missed) / (self._n_others + 1)

    def best_of(self, track: Track, confidences: Sequence[float]) -> Best:
        """The best length of a draft that is there already, and cost nothing."""
        chance, tokens, best = 1.0, 1.0, Best()
        for n, confidence in enumerate(confidences, start=1):
            chance *= track.acceptance.of_confidence(confidence)
            tokens += chance
            worth = self._worth(tokens, n)
            if worth > best.worth and track.allows(n, tokens - 1.0):
                best = Best(n, worth)
        return best

    def drafted(self, track: Track, margins: Sequence[float]) -> Best:
        """The best length of the model's draft so far; its price is paid and not in it."""
        for margin in margins[self._n :]:
            self._n += 1
            self._chance *= track.acceptance.of_confidence(margin)
            self._tokens += self._chance
            worth = self._worth(self._tokens, self._n)
            if worth > self._best.worth and track.allows(self._n, self._tokens - 1.0):
                self._best = Best(self._n, worth)
        return self._best

    def promises_more(
        self, track: Track, margins: Sequence[float], n_max: int, worth: float
    ) -> bool:
        """Whether drafting on may well be worth more than `worth`, its own price included."""
        worth = max(worth, self.drafted(track, margins).worth)
        chance, tokens, n = self._chance, self._tokens, self._n
        step_s = self._costs.draft_s(1) / (self._n_others + 1)
        for ahead in range(1, min(_LOOKAHEAD, n_max - n) + 1):
            chance *= track.acceptance.of_depth(n + ahead - 1)
            tokens += chance
            more = self._worth(tokens, n + ahead) - self._rate * ahead * step_s
            if more > worth and track.allows(n + ahead, tokens - 1.0):
                return True
        return False

    def price(self, n_drafted: int) -> float:
        """Tokens that drafting so many costs."""
        return self._rate * self.draft_s(n_drafted)

    def _worth(self, tokens: float, n: int) -> float:
        return tokens - 1.0 - self._rate * (self.pass_s(n) - self.plain_s)
