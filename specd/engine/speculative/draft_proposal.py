"""Draft proposals: what each request could send in a step, and the cuts to its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from specd.core import DrafterKind
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.drafter import SiblingLimits
from specd.engine.speculative.drafter_stats import DrafterStats
from specd.engine.speculative.siblings import RowAllocation, RowCandidates, sibling_worths


@dataclass(frozen=True, slots=True)
class DraftProposal:
    """A draft that one request could send in this step.

    chances: for each token, the probability that it and all before it are accepted.
    rate: the request's tokens per second.  n: tokens to send.
    siblings: indices of the tokens whose siblings are sent too.
    """

    drafter: str
    rate: float
    chances: Sequence[float]
    stats: DrafterStats | None
    n: int = 0
    siblings: Sequence[int] = ()

    @property
    def n_rows(self) -> int:
        return self.n + len(self.siblings)

    def candidates(self, place: SiblingLimits, chance: float, row_price: float) -> RowCandidates:
        """Return the rows that could be sent, each with its worth in tokens.

        chance: probability that a sibling is right if its token is wrong.
        row_price: cost in tokens of evaluating an accepted sibling again.
        """
        if self.drafter != DrafterKind.MODEL:
            return RowCandidates(self.chances)
        worths = sibling_worths(self.chances, place.at, chance, row_price)
        return RowCandidates(self.chances, worths, place.n_leaves, place.n_rows)

    def take(self, share: RowAllocation) -> DraftProposal:
        """Return the proposal cut to `share`, and further if the acceptance threshold demands."""
        n = share.n
        if self.stats is not None:
            expected = list(accumulate(self.chances[:n]))
            while n and not self.stats.allows(n, expected[n - 1]):
                n -= 1
        return replace(self, n=n, siblings=[at for at in share.siblings if at <= n])

    def shorter(self) -> DraftProposal:
        """Return the proposal without its last sibling, or without its last token if none."""
        if self.siblings:
            return replace(self, siblings=self.siblings[:-1])
        return replace(self, n=self.n - 1)


def split_drafting_time(step_s: float, lengths: Sequence[int]) -> list[float]:
    """Return the seconds of the draft model's passes that each request is charged.

    step_s: seconds of one pass.  lengths: tokens drafted for each request.  At each depth, the
    requests that still draft share the pass equally.
    """
    shares = [0.0]
    for depth in range(max(lengths)):
        shares.append(shares[-1] + step_s / sum(n > depth for n in lengths))
    return [shares[n] for n in lengths]


def cut_to_budgets(
    costs: CostModel,
    proposals: Sequence[DraftProposal],
    spare_s: Sequence[float],
    n_reevaluated: Sequence[int],
) -> tuple[list[DraftProposal], list[float]]:
    """Cut drafts that could exceed their request's loss budget.

    Return the proposals, and for each request the seconds of the pass that it is charged: an equal
    part of a plain pass, and its rows' part of the extra time.  Fewer rows may each cost more,
    since a pass gets slower in steps, so all requests are checked again after every cut.
    spare_s: seconds that each request's rows may add.
    n_reevaluated: rows of each request that are evaluated again.
    """
    proposals, n_slots = list(proposals), len(proposals)
    plain_s = costs.target_s(n_slots)
    while True:
        n_rows = sum(proposal.n_rows for proposal in proposals) + sum(n_reevaluated)
        added_s = max(costs.target_s(n_slots + n_rows) - plain_s, 0.0) / max(n_rows, 1)
        mine_s = [added_s * (o.n_rows + n) for o, n in zip(proposals, n_reevaluated, strict=True)]
        over = [at for at, o in enumerate(proposals) if o.n_rows and mine_s[at] > spare_s[at]]
        if not over:
            return proposals, [plain_s / n_slots + seconds for seconds in mine_s]
        for at in over:
            proposals[at] = proposals[at].shorter()
