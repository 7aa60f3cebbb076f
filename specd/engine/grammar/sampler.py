"""Sampling under a grammar, for target and drafter alike.

The rule is llama.cpp's: sample without the grammar first.  If the token is not allowed, mask the
row and sample again with the same noise.  Without filters, the result is the same as sampling from
the allowed tokens alone: the best of all scores, if allowed, is the best of the allowed ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specd.core import TokenId
from specd.engine.grammar.state import GrammarState, NoAllowedToken
from specd.engine.sampler import CERTAIN, Choice, CoupledSampler, Row


class GuidedSampler:
    """A CoupledSampler under a grammar.

    Target and drafter share the grammar's state.  The drafter runs ahead with it, so sampling at a
    position first rolls the state back to that position.
    """

    def __init__(self, free: CoupledSampler, grammar: GrammarState) -> None:
        self._free = free
        self._grammar = grammar

    @property
    def reads_history(self) -> bool:
        return self._free.reads_history

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:
        """Return the target's token at a position.  Raises NoAllowedToken if none is possible."""
        self._grammar.rollback(self._grammar.n_accepted - position)
        token = self._free.token(row, history, position)
        if not self._grammar.allows(token):
            token = self._free.token(self._masked(row), history, position)
        self._grammar.accept(token)
        return token

    def sample(self, row: Row, history: Sequence[TokenId], position: int) -> Choice:
        """Return a drafter's token at a position, without the grammar if that allows none."""
        n_ahead = self._grammar.n_accepted - position
        if n_ahead < 0:
            # An earlier token of this draft ignored the grammar.
            return self._free.sample(row, history, position)
        try:
            self._grammar.rollback(n_ahead)
            choice = self._free.sample(row, history, position)
            if not self._grammar.allows(choice.token):
                choice = self._free.sample(self._masked(row), history, position)
            self._grammar.accept(choice.token)
        except NoAllowedToken:
            return self._free.sample(row, history, position)
        return choice._replace(margin=min(choice.margin, CERTAIN))

    def _masked(self, row: Row) -> Row:
        allowed = self._grammar.mask()[: len(row)]
        masked: Row = np.where(allowed, row, np.float32(-np.inf))
        if masked.max() == -np.inf:
            raise NoAllowedToken("the model has no token that the grammar allows here")
        return masked
