"""The state of an answer in its grammar, and sampling under it, for target and drafter alike.

The rule is llama.cpp's: sample without the grammar first.  If the token is not allowed, mask the
row and sample again with the same noise.  Without filters, the result is the same as sampling from
the allowed tokens alone: the best of all scores, if allowed, is the best of the allowed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from specd.core import TokenId
from specd.engine.grammar.translation import short_error
from specd.engine.sampler import CERTAIN, Choice, Row, Sampler

Mask = npt.NDArray[np.bool_]


class NoAllowedToken(Exception):
    """No token can follow: the vocabulary has none, or the search for it exceeds the limits."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The vocabulary in the form that grammars need.

    eog_tokens: ids of its end-of-generation tokens.
    control_tokens: ids of other tokens without bytes, which only thinking and its tags may contain.
    """

    tokenizer: LLTokenizer
    n_vocab: int
    eog_tokens: frozenset[TokenId]
    control_tokens: tuple[TokenId, ...] = ()


class GrammarState:
    """The state of one answer: the tokens accepted so far determine which tokens are allowed.

    An end-of-generation token is allowed exactly if the answer may be over.  The grammar does not
    contain these tokens, so all of them are treated alike.
    """

    def __init__(self, start: LLMatcher, table: TokenTable) -> None:
        """Start an answer.  start: the compiled grammar, which other states may share."""
        self._start = start
        self._table = table
        self._matcher = start.deep_copy()
        self._accepted: list[TokenId] = []
        #: Whether an end-of-generation token was accepted, after which no token may follow.
        self.is_finished = False

    @property
    def n_accepted(self) -> int:
        return len(self._accepted)

    def allows(self, token: TokenId) -> bool:
        """Return whether a token is allowed; hundreds of times faster than a mask."""
        if self.is_finished or not 0 <= token < self._table.n_vocab:
            return False
        if token in self._table.eog_tokens or self._matcher.is_stopped():
            may_end = self._matcher.is_accepting() and token in self._table.eog_tokens
            self._check()
            return may_end
        n_valid = self._matcher.validate_tokens([token])
        self._check()
        return n_valid == 1

    def mask(self) -> Mask:
        """Return which tokens are allowed next, [n_vocab].  Raises NoAllowedToken if none is."""
        if self.is_finished:
            raise NoAllowedToken("the answer is already over")
        may_end = self._matcher.is_accepting()
        allowed = np.zeros(self._table.n_vocab, dtype=np.bool_)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bits, count=len(allowed), bitorder="little").view(np.bool_)
        self._check()
        for token in self._table.eog_tokens:
            allowed[token] = may_end
        if not allowed.any():
            raise NoAllowedToken("the grammar allows no token here")
        return allowed

    def accept(self, token: TokenId) -> None:
        """Append a token that is allowed.  Raises NoAllowedToken if that exceeds a limit."""
        if token in self._table.eog_tokens:
            assert not self.is_finished
            self.is_finished = True
        elif not self._matcher.consume_token(token):
            self._check()
        self._accepted.append(token)

    def rollback(self, n_tokens: int) -> None:
        """Remove the last n_tokens, and any error that occurred after them."""
        assert 0 <= n_tokens <= len(self._accepted)
        n_remaining = len(self._accepted) - n_tokens
        n_consumed = n_tokens - (self.is_finished and n_tokens > 0)
        self.is_finished = self.is_finished and n_tokens == 0
        del self._accepted[n_remaining:]
        if not self._matcher.rollback(n_consumed):
            # A matcher stays in its error state after it exceeded a limit, so make a new one.
            self._matcher = self._start.deep_copy()
            self._matcher.consume_tokens(self._accepted)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise NoAllowedToken(
                f"the grammar cannot go on: {short_error(self._matcher.get_error())}"
            )


class GuidedSampler:
    """A sampler under a grammar.

    Target and drafter share the grammar's state.  The drafter runs ahead with it, so sampling at a
    position first rolls the state back to that position.
    """

    def __init__(self, free: Sampler, grammar: GrammarState) -> None:
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
