"""How likely a drafted token is to be accepted: by the drafter's confidence, and by depth.

The drafter's margin (its best score minus its second, shared noise included) tells how safe its
token is; what a margin is worth is learned online, in a few bins.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

#: Upper edges of the margin bins, in nats.
EDGES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
N_BINS = len(EDGES) + 1
#: Optimistic on purpose: a pessimist drafts nothing and so never learns.
PRIOR = 0.75
_PRIOR_WEIGHT = 4.0
#: Past this many observations an estimate forgets, so that it can follow the text.
_MEMORY = 100.0
#: What a request takes over from the engine's estimate, as a number of observations.
_INHERITED = 8.0


@dataclass(slots=True)
class Estimate:
    """A running mean that starts from a prior and forgets slowly."""

    mean: float = PRIOR
    weight: float = _PRIOR_WEIGHT

    def observe(self, value: float) -> None:
        self.weight = min(self.weight + 1.0, _MEMORY)
        self.mean += (value - self.mean) / self.weight

    def inherit(self) -> Estimate:
        return Estimate(self.mean, min(self.weight, _INHERITED))


def _bins() -> list[Estimate]:
    return [Estimate() for _ in range(N_BINS)]


@dataclass(slots=True)
class Acceptance:
    """Estimates for one temperature band of a pair, or for one request that inherits from it."""

    by_margin: list[Estimate] = field(default_factory=_bins)
    by_depth: list[Estimate] = field(default_factory=list)

    def inherit(self) -> Acceptance:
        return Acceptance(
            [e.inherit() for e in self.by_margin], [e.inherit() for e in self.by_depth]
        )

    def of_margin(self, margin: float) -> float:
        return self.by_margin[bisect_right(EDGES, margin)].mean

    def of_depth(self, depth: int) -> float:
        """Chance that the token at that depth (from 0) is accepted when those before it were."""
        if depth < len(self.by_depth):
            return self.by_depth[depth].mean
        return self.by_depth[-1].mean if self.by_depth else PRIOR

    def observe(self, margins: list[float], n_accepted: int) -> None:
        """Learn from one verified draft; nothing is known of tokens behind the first refusal."""
        for depth, margin in enumerate(margins[: n_accepted + 1]):
            accepted = float(depth < n_accepted)
            self.by_margin[bisect_right(EDGES, margin)].observe(accepted)
            while len(self.by_depth) <= depth:
                self.by_depth.append(Estimate(self.of_depth(len(self.by_depth)), _PRIOR_WEIGHT))
            self.by_depth[depth].observe(accepted)
