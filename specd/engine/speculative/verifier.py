"""Verification: a draft is kept while the target samples the same tokens (arXiv 2408.07978).

Terms: a drafted token is *accepted* if it equals the target's.  At the first difference, the
target's token is the *correction*.  After a full match, the extra token is the *bonus*.  A
*sibling* is a second guess for the position of a drafted token, verified as a leaf.  If the
correction equals the sibling, a bonus follows as well.
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

    rows: k+1 target rows [n_vocab], after the history and after each drafted token.
    history: prompt and answer so far.  The caller appends each token before it asks for the next,
    so that penalties see the same history as in plain decoding.
    position: index of the first yielded token among the generated ones.
    siblings: (token, row after it) by the index of its drafted token; index k is after the last.
    Raises NoAllowedToken, NonFiniteLogits.
    """
    for i, row in enumerate(rows):
        token = sampler.token(row, history, position + i)
        yield token, row
        if i == len(draft) or token != draft[i]:
            break
    if i in siblings and siblings[i][0] == token:
        row = siblings[i][1]
        yield sampler.token(row, history, position + i + 1), row


def count_right(guess: Sequence[TokenId], emitted: Sequence[TokenId]) -> tuple[int, int]:
    """Return how many tokens of the guess are right, and how many the emitted ones can judge."""
    n_right = 0
    for guessed, token in zip(guess, emitted, strict=False):
        if guessed != token:
            return n_right, n_right + 1
        n_right += 1
    return n_right, n_right
