"""The draft model's second best tokens: how likely one is to be right, and which are worth a row.

A sibling stands beside a drafted token, in its place.  Where the drafted token is wrong and its
sibling right, the step keeps the sibling and the target's token behind it.  How often a sibling is
right where its token is wrong differs by pair and temperature and hardly by margin, so that one
figure is learned; the margin says how likely the drafted token is to be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

#: Most siblings beside a draft.  Each is a sequence of its own in the cache, and a pass that has
#: one looks through all cells for its.
MOST_SIBLINGS = 7
#: What is believed at first: what pairs were found to have in common.
_PRIOR, _PRIOR_WEIGHT = 0.4, 8.0
#: Past this many observations the figure forgets, so that it can follow the text.
_MEMORY = 200.0


@dataclass(slots=True)
class SiblingChance:
    """How often a sibling is right where its token is wrong: a running mean."""

    mean: float = _PRIOR
    weight: float = _PRIOR_WEIGHT

    def observe(self, *, is_right: bool) -> None:
        self.weight = min(self.weight + 1.0, _MEMORY)
        self.mean += (is_right - self.mean) / self.weight


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows that one request could send.

    line: for each drafted token, the chance that it and all before it are right; falling.
    siblings: by the index of the token in whose place each stands, its worth: the chance that it
    is right and its token is not, less what reading it again costs; never more than the line has
    before it.  n_siblings, n_rows: most of them, and of both.
    """

    line: Sequence[float]
    siblings: Mapping[int, float] = field(default_factory=dict)
    n_siblings: int = 0
    n_rows: int = 1 << 31


@dataclass(slots=True)
class Share:
    """What a request sends: the first n tokens of its line, and siblings by index, in order."""

    n: int = 0
    siblings: list[int] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        return self.n + len(self.siblings)


def sibling_worths(
    line: Sequence[float], places: Sequence[int], chance: float, row_price: float
) -> dict[int, float]:
    """Worth in tokens of each sibling.

    places: indices in the line.  chance: of a sibling whose token is wrong.
    row_price: tokens that a row of the next pass costs, where an accepted sibling is read again.
    """
    kept = max(1.0 - row_price, 0.0) * chance
    before = [1.0, *line]
    return {at: (before[at] - line[at]) * kept for at in places if at < len(line)}


def share_out(several: Sequence[Candidates], price: Callable[[int], float]) -> list[Share]:
    """What each request sends, so that the pass as a whole is worth most.

    price: of so many rows more than a plain pass has, in tokens.  It depends on their number alone,
    and chances fall along a line, so that the best n rows are the n likeliest; those that a bound
    keeps out are passed over.
    """
    worth, best, best_n = 0.0, 0.0, 0
    taken = list(_likeliest(several))
    for n, (chance, _, _, _) in enumerate(taken, start=1):
        worth += chance
        if worth - price(n) > best:
            best, best_n = worth - price(n), n
    shares = [Share() for _ in several]
    for _, index, is_sibling, at in taken[:best_n]:
        if is_sibling:
            shares[at].siblings.append(index)
        else:
            shares[at].n += 1
    for share in shares:
        share.siblings.sort()
    return shares


def _likeliest(several: Sequence[Candidates]) -> Iterator[tuple[float, int, bool, int]]:
    """(worth, index in the line, whether a sibling, number of the request), best first."""
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
