"""Prompt lookup: a drafter without a model, which proposes what followed the same tokens before.

It gains where the answer repeats its prompt or itself: edits, copies, quotations.  The idea is
Saxena's (prompt lookup decoding, 2023).  Here the index is updated token by token, so a draft
costs the same in a context of a hundred thousand tokens as in one of a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.core import TokenId

#: Lengths of the indexed n-grams, the most reliable first.
NGRAM_SIZES = (8, 3)
#: Longest match that is measured, in tokens; longer ones are not more reliable.
MAX_MATCH = 32
#: Tokens indexed per call, so that a long prompt does not delay the other slots.
_MAX_ENTERED_PER_CALL = 4096


@dataclass(slots=True)
class _Table:
    """The n-gram index of one slot.

    ends: position after the last occurrence of each n-gram.  n_indexed: tokens indexed so far.
    """

    ends: dict[tuple[TokenId, ...], int] = field(default_factory=dict)
    n_indexed: int = 0


@dataclass(frozen=True, slots=True)
class LookupMatch:
    """The tokens that followed the last time, and the number of equal tokens before each."""

    tokens: Sequence[TokenId] = ()
    matches: Sequence[float] = ()


class PromptLookup:
    """A drafter with one n-gram index per slot.

    Positions in an index may be stale after a rewind.  Every match is checked against the history
    itself, so a stale position can only cost a draft.
    """

    def __init__(self, n_slots: int) -> None:
        self._tables = [_Table() for _ in range(n_slots)]

    def begin(self, slot: int) -> None:
        """Clear the slot's index for a new history."""
        self._tables[slot] = _Table()

    def rewind(self, slot: int, n_past: int) -> None:
        """Note that only the first n_past tokens of the slot's history are unchanged."""
        table = self._tables[slot]
        table.n_indexed = min(table.n_indexed, n_past)

    def find(self, slot: int, history: Sequence[TokenId], n_max: int) -> LookupMatch:
        """Return at most n_max tokens that followed the last n-gram of the history before.

        Longer n-grams go first; the result is empty if none occurred before.
        """
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
        """Index every n-gram that has a successor: all but the one at the very end."""
        first = max(table.n_indexed, 1)
        last = min(len(history), first + _MAX_ENTERED_PER_CALL)
        for end in range(first, last):
            for n_gram in NGRAM_SIZES:
                if end >= n_gram:
                    table.ends[tuple(history[end - n_gram : end])] = end
        table.n_indexed = max(table.n_indexed, last)


def _following(history: Sequence[TokenId], at: int, n: int) -> list[TokenId]:
    """Return n tokens from `at` on; past the end of the history, continue the repetition.

    The result ends before an image, since a draft cannot contain one.
    """
    tokens = list(history[at : at + n])
    period = len(history) - at
    while len(tokens) < n:
        tokens.append(tokens[len(tokens) - period])
    if min(tokens) < 0:
        del tokens[next(i for i, token in enumerate(tokens) if token < 0) :]
    return tokens


def _n_matching(history: Sequence[TokenId], at: int) -> int:
    """Return how many tokens before `at` equal those at the end of the history, up to MAX_MATCH."""
    end = len(history)
    n_most = min(at, MAX_MATCH)
    for n in range(n_most):
        if history[at - 1 - n] != history[end - 1 - n]:
            return n
    return n_most
