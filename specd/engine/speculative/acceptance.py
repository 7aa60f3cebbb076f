"""How likely a drafted token is to be accepted: by the drafter's confidence, and by depth.

A drafter says with each token how sure it is: a model by its margin (its best score minus its
second, shared noise included), prompt lookup by how many tokens before it match.  What such a
confidence is worth is learned online, in a few bins.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.core import DrafterKind

#: Upper edges of the bins: margins in nats, and lengths of matches in tokens.
EDGES = {
    DrafterKind.MODEL: (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0),
    DrafterKind.LOOKUP: (4.0, 5.0, 7.0, 9.0, 13.0, 17.0, 25.0, 32.0),
}
#: What is believed at first, bin by bin: what pairs were found to have in common.  It need not be
#: optimistic to be corrected, since every guess is judged whether it is sent or not.
PRIORS = {
    DrafterKind.MODEL: (0.4, 0.45, 0.5, 0.58, 0.68, 0.76, 0.84, 0.9, 0.95),
    DrafterKind.LOOKUP: (0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95),
}
#: Of a depth that nobody has drafted yet.
DEEPER = 0.75
_PRIOR_WEIGHT = 4.0
#: Observations that the first estimate of a depth counts for: a few wrong guesses must not end all
#: drafts that are this long, since nothing more would be learned of them.
_DEPTH_WEIGHT = 24.0
#: Past this many observations an estimate forgets.
_MEMORY = 400.0
#: Part of a bin's error that also moves all other bins: a useless drafter is soon found out.
_NEWS = 0.1
#: How little one request's text is taken to differ from others before it has shown that, and how
#: much of what it has shown is remembered: information on the log odds, of which a guess gives
#: chance × (1 − chance).
_TEXT_PRIOR, _TEXT_MEMORY = 6.0, 10.0
#: Share of what is odd about one text that the pair learns nevertheless.
_ODD = 0.2
#: No chance is taken to be nearer to 0 or 1.
_MARGIN = 0.005


@dataclass(slots=True)
class Estimate:
    """A running mean that starts from a prior and forgets slowly."""

    mean: float
    weight: float = _PRIOR_WEIGHT

    def learn(self, surprise: float) -> None:
        """Move by what was observed beyond the expected, the less the more is known."""
        self.weight = min(self.weight + 1.0, _MEMORY)
        self.mean = min(max(self.mean + surprise / self.weight, 0.0), 1.0)


@dataclass(slots=True)
class Acceptance:
    """Estimates of one drafter in one temperature band, over all requests."""

    edges: Sequence[float]
    priors: Sequence[float]
    by_confidence: list[Estimate]
    by_depth: list[Estimate] = field(default_factory=list)

    @classmethod
    def of(cls, drafter: DrafterKind) -> Acceptance:
        priors = PRIORS[drafter]
        return cls(EDGES[drafter], priors, [Estimate(prior) for prior in priors])

    def of_confidence(self, confidence: float) -> float:
        return self.by_confidence[bisect_right(self.edges, confidence)].mean

    def of_depth(self, depth: int) -> float:
        """Chance that the token at that depth (from 0) is accepted when those before it were."""
        if depth < len(self.by_depth):
            return self.by_depth[depth].mean
        return self.by_depth[-1].mean if self.by_depth else DEEPER

    def learn_confidence(self, confidence: float, surprise: float) -> None:
        """surprise: 1 or 0 for a right or wrong guess, less the chance that it was given."""
        estimate = self.by_confidence[bisect_right(self.edges, confidence)]
        for other in self.by_confidence:
            if other is not estimate:
                moved = other.mean + surprise * _NEWS / (other.weight + 1.0)
                other.mean = min(max(moved, 0.0), 1.0)
        estimate.learn(surprise)

    def learn_depth(self, depth: int, surprise: float) -> None:
        """The same for the depth of a guess, from 0."""
        while len(self.by_depth) <= depth:
            self.by_depth.append(Estimate(self.of_depth(len(self.by_depth)), _DEPTH_WEIGHT))
        self.by_depth[depth].learn(surprise)


@dataclass(slots=True)
class TextAcceptance:
    """Estimates for one request: the pair's, shifted by as much as its text proves to differ.

    One number is learned from every guess, so a few guesses say whether a text is easier or harder
    for the drafter than others.  It is a logistic model with one coefficient, fitted online.

    shift: added to the pair's log odds.  information: what the shift was learned from.
    """

    pair: Acceptance
    shift: float = 0.0
    information: float = 0.0

    def of_confidence(self, confidence: float) -> float:
        return self._shifted(self.pair.of_confidence(confidence))

    def of_depth(self, depth: int) -> float:
        return self._shifted(self.pair.of_depth(depth))

    def _shifted(self, chance: float) -> float:
        chance = min(max(chance, _MARGIN), 1.0 - _MARGIN)
        return 1.0 / (1.0 + (1.0 - chance) / chance * math.exp(-self.shift))

    def observe(
        self, confidences: Sequence[float], n_right: int, n_judged: int, *, teaches: bool = True
    ) -> None:
        """Learn from one draft, sent or not, of which the target's text judged n_judged tokens.

        Nothing is known of tokens behind the first wrong one, nor behind the end of what was said.
        teaches: whether the pair learns from it, too; only what the shift does not explain, so that
        one odd text does not spoil what is known of all others.
        """
        for depth, confidence in enumerate(confidences[:n_judged]):
            right = float(depth < n_right)
            chance = self.of_confidence(confidence)
            if teaches:
                self.pair.learn_depth(depth, right - self.of_depth(depth))
                own = self.pair.of_confidence(confidence)
                self.pair.learn_confidence(confidence, right - chance - _ODD * (own - chance))
            self.information = min(self.information + chance * (1.0 - chance), _TEXT_MEMORY)
            self.shift += (right - chance) / (_TEXT_PRIOR + self.information)
