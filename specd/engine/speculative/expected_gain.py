"""The expected gain of a draft in one step, in tokens.

The worth of a draft of length k is tokens(k) − 1 − λ·(seconds(k) − seconds(0)).  λ is the request's
tokens per second.  The worth of a plain step is zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specd.engine.speculative.acceptance import TextAcceptance
from specd.engine.speculative.budget import LossBudget
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.drafter_stats import DrafterStats

#: A draft is extended if one of up to this many more tokens is expected to be worth it.
_LOOKAHEAD = 8


@dataclass(frozen=True, slots=True)
class BestLength:
    """A draft length and its worth in tokens beyond a plain step; 0 if no draft pays."""

    n: int = 0
    worth: float = 0.0


class ExpectedGain:
    """The costs of one step for one of n_slots requests, and the worth of its draft so far.

    What the other requests will send is not known yet.  Each is assumed to send as many rows as
    this one.  A pass gets slower in steps, so one more row alone would often look too expensive.
    """

    def __init__(
        self,
        costs: CostModel,
        speed: float,
        n_missed: int = 0,
        n_slots: int = 1,
        n_sharing: float = 1.0,
        budget: LossBudget | None = None,
    ) -> None:
        """Compute the costs of the step.

        speed: recent tokens per second of the request.
        n_missed: tokens the draft model must read first.
        n_sharing: requests that share a pass of the draft model, on average.
        budget: time that the request may still lose; None: no limit.
        """
        self._costs = costs
        self._n_slots = n_slots
        self._step_s = costs.draft_s(1)
        self._n_sharing = min(max(n_sharing, 1.0), n_slots)
        self._reading_s = costs.reading_s(n_missed)
        #: Seconds of a plain step that are charged to this request: an equal share of the pass.
        self.plain_s = costs.target_s(n_slots) / n_slots
        #: Seconds that the step may take beyond a plain one.
        self.spare_s = math.inf if budget is None else budget.left_s(self.plain_s)
        #: Tokens per second, never less than plain decoding gives.
        self.rate = max(1.0 / self.plain_s, speed)
        self._pass_s = [self.plain_s]
        self._n, self._chance, self._tokens = 0, 1.0, 1.0
        self._best = BestLength()

    def probe_s(self) -> float:
        """Return the most seconds that drafting a single token takes."""
        return self._step_s + self._reading_s

    def n_affordable(self, n_max: int) -> int:
        """Return the longest draft that the budget allows even if all of it is rejected."""
        n = n_max
        while n and n * self._step_s + self._reading_s + self._added_s(n) > self.spare_s:
            n -= 1
        return n

    def price(self, n_drafted: int) -> float:
        """Return the cost in tokens of drafting n_drafted tokens, without reading missed ones."""
        return self.rate * n_drafted * self._step_s / self._n_sharing

    def reading_price(self) -> float:
        """Return the cost in tokens of reading the tokens that the draft model has missed."""
        return self.rate * self._reading_s

    def best_length_of(self, stats: DrafterStats, confidences: Sequence[float]) -> BestLength:
        """Return the best length of a draft that took no time to make (prompt lookup)."""
        tokens, best = 1.0, BestLength()
        for n, chance in enumerate(chances(stats.acceptance, confidences), start=1):
            tokens += chance
            worth = self._worth(tokens, n)
            if worth > best.worth and self._may_send(stats, n, tokens):
                best = BestLength(n, worth)
        return best

    def best_drafted(self, stats: DrafterStats, margins: Sequence[float]) -> BestLength:
        """Return the best length of the model's draft so far, without the time to draft it."""
        for margin in margins[self._n :]:
            self._n += 1
            self._chance *= stats.acceptance.of_confidence(margin)
            self._tokens += self._chance
            worth = self._worth(self._tokens, self._n)
            if worth > self._best.worth and self._may_send(stats, self._n, self._tokens):
                self._best = BestLength(self._n, worth)
        return self._best

    def should_extend(
        self, stats: DrafterStats, margins: Sequence[float], n_max: int, worth: float
    ) -> bool:
        """Return whether a longer draft may be worth more than `worth`, drafting time included."""
        worth = max(worth, self.best_drafted(stats, margins).worth)
        chance, tokens, n = self._chance, self._tokens, self._n
        for ahead in range(1, min(_LOOKAHEAD, n_max - n) + 1):
            chance *= stats.acceptance.of_depth(n + ahead - 1)
            tokens += chance
            more = self._worth(tokens, n + ahead) - self.price(ahead)
            if more > worth and self._may_send(stats, n + ahead, tokens):
                return True
        return False

    def _may_send(self, stats: DrafterStats, n: int, tokens: float) -> bool:
        """Return whether budget and threshold allow n tokens that should give `tokens`."""
        return self._added_s(n) <= self.spare_s and stats.allows(n, tokens - 1.0)

    def _worth(self, tokens: float, n: int) -> float:
        return tokens - 1.0 - self.rate * self._added_s(n)

    def _added_s(self, n: int) -> float:
        """Return the seconds that verifying n tokens adds to a plain step."""
        while len(self._pass_s) <= n:
            width = self._n_slots * (1 + len(self._pass_s))
            self._pass_s.append(max(self._costs.target_s(width) / self._n_slots, self.plain_s))
        return self._pass_s[n] - self.plain_s


def chances(acceptance: TextAcceptance, confidences: Sequence[float]) -> Iterator[float]:
    """Yield for each token the probability that it and all before it are accepted."""
    chance = 1.0
    for confidence in confidences:
        chance *= acceptance.of_confidence(confidence)
        yield chance
