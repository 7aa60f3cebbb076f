"""What drafts are worth in one step, in tokens: of one request while it drafts, of all in the end.

Worth of a draft of length k: tokens(k) − 1 − λ·(seconds(k) − seconds(0)), with λ the request's
tokens per second: zero for a plain step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specd.engine.speculative.acceptance import Acceptance
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
    """The prices of one step for one of n_slots requests, and the draft that grows in it.

    What the others will send is not known yet: as many rows as this one would, is the assumption.
    Passes get wide in steps, so that each alone would often find one more row too dear.
    """

    def __init__(self, costs: CostModel, speed: float, n_missed: int, n_slots: int) -> None:
        """speed: recent tokens per second of the request.

        n_missed: tokens the draft model must read first.
        """
        self._costs = costs
        self._n_slots = n_slots
        #: Seconds of a plain step that this request answers for: an equal share of the pass.
        self.plain_s = costs.target_s(n_slots) / n_slots
        #: Tokens per second, never less than plain decoding gives.
        self.rate = max(1.0 / self.plain_s, speed)
        self._n_missed = n_missed
        self._pass_s = [self.plain_s]
        self._n, self._chance, self._tokens = 0, 1.0, 1.0
        self._best = Best()

    def draft_s(self, n_tokens: int) -> float:
        """Seconds of drafting that this request answers for.

        Passes of the draft model are shared; what it reads for this request alone is not.
        """
        if n_tokens == 0:
            return 0.0
        reading_s = self._costs.reading_s(self._n_missed)
        return self._costs.draft_s(n_tokens) / self._n_slots + reading_s

    def price(self, n_drafted: int) -> float:
        """Tokens that drafting so many costs, where nothing is left to be read first."""
        return self.rate * self._costs.draft_s(n_drafted) / self._n_slots

    def best_of(self, track: Track, confidences: Sequence[float]) -> Best:
        """The best length of a draft that is there already, and cost nothing."""
        tokens, best = 1.0, Best()
        for n, chance in enumerate(chances(track.acceptance, confidences), start=1):
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
        step_s = self._costs.draft_s(1) / self._n_slots
        for ahead in range(1, min(_LOOKAHEAD, n_max - n) + 1):
            chance *= track.acceptance.of_depth(n + ahead - 1)
            tokens += chance
            more = self._worth(tokens, n + ahead) - self.rate * ahead * step_s
            if more > worth and track.allows(n + ahead, tokens - 1.0):
                return True
        return False

    def _worth(self, tokens: float, n: int) -> float:
        while len(self._pass_s) <= n:
            width = self._n_slots * (1 + len(self._pass_s))
            self._pass_s.append(max(self._costs.target_s(width) / self._n_slots, self.plain_s))
        return tokens - 1.0 - self.rate * (self._pass_s[n] - self.plain_s)


def chances(acceptance: Acceptance, confidences: Sequence[float]) -> Iterator[float]:
    """For each token: the chance that it and all before it are accepted."""
    chance = 1.0
    for confidence in confidences:
        chance *= acceptance.of_confidence(confidence)
        yield chance


def share_out(
    costs: CostModel, rate: float, n_slots: int, drafts: Sequence[Sequence[float]]
) -> list[int]:
    """How much of each draft to send, so that the pass as a whole is worth most.

    rate: tokens per second of all together.  drafts: of each, the chance of every token to be
    accepted together with those before it.  What a pass costs depends on the sum of its rows alone,
    and chances fall along a draft, so the best n rows are the n likeliest tokens of all drafts.
    """
    likeliest = sorted(
        (-chance, depth, at)
        for at, draft in enumerate(drafts)
        for depth, chance in enumerate(draft)
    )
    plain_s = costs.target_s(n_slots)
    tokens, best_n, best_worth = 0.0, 0, 0.0
    for n, (minus_chance, _, _) in enumerate(likeliest, start=1):
        tokens -= minus_chance
        worth = tokens - rate * max(costs.target_s(n_slots + n) - plain_s, 0.0)
        if worth > best_worth:
            best_n, best_worth = n, worth
    lengths = [0] * len(drafts)
    for _, _, at in likeliest[:best_n]:
        lengths[at] += 1
    return lengths
