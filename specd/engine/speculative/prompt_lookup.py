"""Prompt lookup: what followed these tokens the last time?  A drafter without a model.

It wins where the answer repeats its prompt or itself: edits, copies, quotations.  The idea is
Saxena's (prompt lookup decoding, 2023); here the table is kept token by token, so that a draft
costs the same in a context of a hundred thousand tokens as in one of a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.core import TokenId

#: Lengths of the token sequences that are remembered, the most telling first.
NGRAM_SIZES = (8, 3)
#: Matches are measured no further back: more would say nothing new.
MAX_MATCH = 32
#: Tokens entered per call, so that a long prompt never holds up the other slots.
_MAX_ENTERED_PER_CALL = 4096


@dataclass(slots=True)
class _Table:
    """ends: where each remembered sequence last ended; n_entered: how far the history was read."""

    ends: dict[tuple[TokenId, ...], int] = field(default_factory=dict)
    n_indexed: int = 0


@dataclass(frozen=True, slots=True)
class LookupMatch:
    """tokens: what followed last time.  matches: for each, how many tokens before it agree."""

    tokens: Sequence[TokenId] = ()
    matches: Sequence[float] = ()


class PromptLookup:
    """One table per slot.

    Positions in a table may be stale after a rewind: a match is always checked against the history
    itself, so a stale one costs a guess and never a wrong claim.
    """

    def __init__(self, n_slots: int) -> None:
        self._tables = [_Table() for _ in range(n_slots)]

    def begin(self, slot: int) -> None:
        """Another history begins in the slot."""
        self._tables[slot] = _Table()

    def rewind(self, slot: int, n_past: int) -> None:
        """The slot's history is the same as before only up to n_past tokens."""
        table = self._tables[slot]
        table.n_indexed = min(table.n_indexed, n_past)

    def find(self, slot: int, history: Sequence[TokenId], n_max: int) -> LookupMatch:
        """At most n_max tokens that followed the longest remembered end of the history."""
        table = self._tables[slot]
        self._index(table, history)
        if n_max <= 0:
            return LookupMatch()
        for n_gram in NGRAM_SIZES:
            if len(history) <= n_gram:
                continue
            at = table.ends.get(tuple(history[-n_gram:]), 0)
            if 0 < at < len(history) and (n_match := _n_matching(history, at)) >= n_gram:
                tokens = _following(history, at, n_max)
                return LookupMatch(tokens, [float(n_match + i) for i in range(len(tokens))])
        return LookupMatch()

    def _index(self, table: _Table, history: Sequence[TokenId]) -> None:
        """Remember every sequence that has a successor: all but the one at the very end."""
        first = max(table.n_indexed, 1)
        last = min(len(history), first + _MAX_ENTERED_PER_CALL)
        for end in range(first, last):
            for n_gram in NGRAM_SIZES:
                if end >= n_gram:
                    table.ends[tuple(history[end - n_gram : end])] = end
        table.n_indexed = max(table.n_indexed, last)


def _following(history: Sequence[TokenId], at: int, n: int) -> list[TokenId]:
    """N tokens from `at` on; past the end of the history the repetition goes on.

    Fewer where an image follows, which nobody can say.
    """
    tokens = list(history[at : at + n])
    period = len(history) - at
    while len(tokens) < n:
        tokens.append(tokens[len(tokens) - period])
    if min(tokens) < 0:
        del tokens[next(i for i, token in enumerate(tokens) if token < 0) :]
    return tokens


def _n_matching(history: Sequence[TokenId], at: int) -> int:
    """How many tokens before `at` are the same as at the end of the history, up to MAX_MATCH."""
    end = len(history)
    n_most = min(at, MAX_MATCH)
    for n in range(n_most):
        if history[at - 1 - n] != history[end - 1 - n]:
            return n
    return n_most
