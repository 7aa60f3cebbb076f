"""Draft proposals: the rows that each request could send in a step, and the choice among them.

A sibling is the draft model's second-best token for the position of a drafted token.  If the
drafted token is wrong and its sibling right, the step keeps the sibling and the target's token
after it.  The probability of that hardly depends on the margin, so one number is learned per
temperature band.  The margin says how likely the drafted token is to be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from specd.core import DrafterKind
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.drafter_stats import DrafterStats

#: Most siblings of a draft.  Each needs its own sequence in the cache, and a pass with a sibling
#: searches all cells for those of that sequence.
MAX_SIBLINGS = 7
#: The estimate before anything is observed: an average over many pairs.
_PRIOR, _PRIOR_WEIGHT = 0.4, 8.0
#: Most observations that the mean remembers, so that it can follow the text.
_MEMORY = 200.0


class SiblingLimits(NamedTuple):
    """Limits on the siblings of a draft.

    at: indices of the drafted tokens that may have one.  n_leaves: most siblings.
    n_rows: most rows of drafted tokens and siblings together.
    n_reevaluated: rows of the pass that evaluate tokens again that an earlier pass accepted.
    """

    at: Sequence[int] = ()
    n_leaves: int = 0
    n_rows: int = 1 << 31
    n_reevaluated: int = 0


@dataclass(slots=True)
class SiblingChance:
    """A running mean of how often a sibling is right when its drafted token is wrong."""

    mean: float = _PRIOR
    weight: float = _PRIOR_WEIGHT

    def observe(self, *, is_right: bool) -> None:
        self.weight = min(self.weight + 1.0, _MEMORY)
        self.mean += (is_right - self.mean) / self.weight


@dataclass(frozen=True, slots=True)
class RowCandidates:
    """The rows that one request could send.

    line: for each drafted token, the probability that it and all before it are right; it never
    rises.  siblings: worth of each, by the index of its drafted token: the probability that the
    sibling is right and the token wrong, less the cost of evaluating it again.  It never exceeds
    the probability of the token before.  n_siblings, n_rows: limits on siblings and on all rows.
    """

    line: Sequence[float]
    siblings: Mapping[int, float] = field(default_factory=dict)
    n_siblings: int = 0
    n_rows: int = 1 << 31


@dataclass(slots=True)
class RowAllocation:
    """The rows that a request sends: the first n tokens of its line, and siblings by index."""

    n: int = 0
    siblings: list[int] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        return self.n + len(self.siblings)


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

        chance, row_price: as in `sibling_worths`.
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


def sibling_worths(
    line: Sequence[float], places: Sequence[int], chance: float, row_price: float
) -> dict[int, float]:
    """Return the worth of each sibling in tokens, by index.

    places: indices in the line.  chance: that a sibling is right if its token is wrong.
    row_price: cost in tokens of a row of the next pass, which evaluates an accepted sibling again.
    """
    kept = max(1.0 - row_price, 0.0) * chance
    before = [1.0, *line]
    return {at: (before[at] - line[at]) * kept for at in places if at < len(line)}


def allocate_rows(
    several: Sequence[RowCandidates], price: Callable[[int], float]
) -> list[RowAllocation]:
    """Return the rows that each request sends so that the pass is worth most.

    price: number of rows beyond a plain pass → their cost in tokens.  The cost depends on the
    number alone, and probabilities fall along a line, so the best n rows are the n likeliest.
    Rows that exceed a request's limits are skipped.
    """
    worth, best, best_n = 0.0, 0.0, 0
    taken = list(_rows_by_worth(several))
    for n, (chance, _, _, _) in enumerate(taken, start=1):
        worth += chance
        if worth - price(n) > best:
            best, best_n = worth - price(n), n
    shares = [RowAllocation() for _ in several]
    for _, index, is_sibling, at in taken[:best_n]:
        if is_sibling:
            shares[at].siblings.append(index)
        else:
            shares[at].n += 1
    for share in shares:
        share.siblings.sort()
    return shares


def _rows_by_worth(several: Sequence[RowCandidates]) -> Iterator[tuple[float, int, bool, int]]:
    """Yield (worth, index in the line, is it a sibling, index of the request), best first."""
    every = [
        *((-c, i, False, at) for at, one in enumerate(several) for i, c in enumerate(one.line)),
        *((-c, i, True, at) for at, one in enumerate(several) for i, c in one.siblings.items()),
    ]
    rows, siblings = [one.n_rows for one in several], [one.n_siblings for one in several]
    for minus, index, is_sibling, at in sorted(every):
        if rows[at] and (siblings[at] or not is_sibling):
            rows[at] -= 1
            siblings[at] -= is_sibling
            yield -minus, index, is_sibling, at


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
