"""Requests that wait for a slot.

First come, first served; only whoever's grammar is still being compiled lets others pass.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from specd.core import EngineRequest, TokenId
from specd.engine.backend import Vocabulary
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.state import GrammarState
from specd.errors import InvalidRequest

log = logging.getLogger("specd.engine")

#: How long a loop without other work may stay away from its messages.
_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """tokens: the prompt's, fitted to the context."""

    request_id: int
    request: EngineRequest
    tokens: list[TokenId]
    grammar: Future[GrammarState] | None = None

    @property
    def is_ready(self) -> bool:
        return self.grammar is None or self.grammar.done()

    def compiled(self) -> GrammarState | None:
        """The grammar of one that is ready, if it has any.  Raises InvalidRequest."""
        if self.grammar is None:
            return None
        if (error := self.grammar.exception()) is not None and not isinstance(
            error, InvalidRequest
        ):
            # Border: no process for it could be had, or the library gave up.  It costs one answer.
            log.error("a grammar could not be compiled", exc_info=error)
            raise InvalidRequest(f"the grammar could not be compiled: {error}") from error
        return self.grammar.result()


class Queue:
    """Only the loop's thread touches it; grammars are compiled in another."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._compiler = GrammarCompiler(vocabulary)
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, request_id: int, request: EngineRequest, tokens: list[TokenId]) -> None:
        grammar = None
        if request.grammar is not None:
            grammar = self._compiler.submit(request.grammar)
        self._waiting.append(Waiting(request_id, request, tokens, grammar))

    def first(self) -> Waiting | None:
        """Who is next among those that could begin at once."""
        return next((waiting for waiting in self._waiting if waiting.is_ready), None)

    def remove(self, request_id: int) -> None:
        self._waiting = deque(w for w in self._waiting if w.request_id != request_id)

    def empty(self) -> Iterator[Waiting]:
        while self._waiting:
            yield self._waiting.popleft()

    def pause(self) -> None:
        """Give compilation a moment, where there is nothing else to do."""
        compiling = [w.grammar for w in self._waiting if w.grammar is not None]
        if compiling:
            wait(compiling, _PAUSE_S, return_when=FIRST_COMPLETED)
