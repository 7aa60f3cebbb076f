"""The draft model's second-best tokens: how likely one is to be right, and which to verify.

A sibling is the second-best token for the position of a drafted token.  If the drafted token is
wrong and its sibling right, the step keeps the sibling and the target's token after it.  That
probability depends on the pair and the temperature and hardly on the margin, so one number is
learned per temperature band.  The margin says how likely the drafted token is to be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

#: Most siblings of a draft.  Each needs its own sequence in the cache, and a pass with a sibling
#: searches all cells for those of that sequence.
MAX_SIBLINGS = 7
#: The estimate before anything is observed: an average over many pairs.
_PRIOR, _PRIOR_WEIGHT = 0.4, 8.0
#: Most observations that the mean remembers, so that it can follow the text.
_MEMORY = 200.0


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
