"""The token that a row gives where a grammar must be kept, for target and drafter alike.

llama.cpp's rule: draw as if there were no grammar; only a token that is not allowed costs a mask,
under which the same draw is made again with the same noise.  Without filters that is exactly the
draw from the allowed tokens alone: the best of all scores, if allowed, is the best of the allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specd.core import TokenId
from specd.engine.grammar.state import GrammarState, NoAllowedToken
from specd.engine.sampler import CERTAIN, Choice, CoupledSampler, Row


class GuidedSampler:
    """A CoupledSampler within a grammar.

    Which tokens led to a position is what decides what may stand there, so every draw at a
    position first forgets those drawn there and behind: a drafter runs ahead with the same state
    that verification then follows again.
    """

    def __init__(self, free: CoupledSampler, grammar: GrammarState) -> None:
        self._free = free
        self._grammar = grammar

    @property
    def reads_history(self) -> bool:
        return self._free.reads_history

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:
        """The target's token at a position.  Raises NoAllowedToken where there can be none."""
        self._grammar.rollback(self._grammar.n_accepted - position)
        token = self._free.token(row, history, position)
        if not self._grammar.allows(token):
            token = self._free.token(self._masked(row), history, position)
        self._grammar.accept(token)
        return token

    def sample(self, row: Row, history: Sequence[TokenId], position: int) -> Choice:
        """A drafter's token at a position; a guess without the grammar where that is stuck."""
        n_ahead = self._grammar.n_accepted - position
        if n_ahead < 0:
            # An earlier guess of this draft was without the grammar.
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
            raise NoAllowedToken("the model knows no token that the grammar allows here")
        return masked
