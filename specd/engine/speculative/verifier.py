"""Keep a draft while the target would have said the same (arXiv 2408.07978).

Words: a drafted token is *accepted* when it equals the target's own; at the first difference the
target's token is the *correction*; after a full match the extra token is the *bonus*.  A *sibling*
is a second guess for the position of a drafted token, verified as a leaf: if the correction equals
it, a bonus follows as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specd.core import TokenId
from specd.engine.sampler import Row, Sampler

NO_SIBLINGS: Mapping[int, tuple[TokenId, Row]] = {}


def verify(
    draft: Sequence[TokenId],
    rows: Sequence[Row],
    sampler: Sampler,
    history: list[TokenId],
    position: int,
    siblings: Mapping[int, tuple[TokenId, Row]] = NO_SIBLINGS,
) -> Iterator[tuple[TokenId, Row]]:
    """Yield the target's tokens, one per accepted draft token and one more, each with its row.

    rows: k+1 target rows [n_vocab], after history and after each drafted token.
    siblings: by the index in the draft at which each stands (k is behind its end), with the row
    after the draft up to there and the sibling.
    history: prompt and answer so far; the caller appends each token it keeps before asking for
    the next, so that penalties see what plain decoding would have seen.
    position: index of the first yielded token among the generated ones.
    Raises NoAllowedToken instead of a token where the request's grammar leaves none.
    """
    for i, row in enumerate(rows):
        token = sampler.token(row, history, position + i)
        yield token, row
        if i == len(draft) or token != draft[i]:
            break
    if i in siblings and siblings[i][0] == token:
        row = siblings[i][1]
        yield sampler.token(row, history, position + i + 1), row
