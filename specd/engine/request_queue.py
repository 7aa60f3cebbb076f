"""Requests that wait for a slot.

First come, first served; only whose grammar is still being compiled, or whose images are still
being read, lets others pass.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from specd.core import EngineRequest
from specd.engine.backend import Vocabulary
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.state import GrammarState
from specd.engine.media import Prompt
from specd.errors import InvalidRequest, WorkerDied

T = TypeVar("T")

log = logging.getLogger("specd.engine")

#: How long a loop without other work may stay away from its messages.
_MAX_WAIT_S = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """prompt: fitted to the context."""

    request_id: int
    request: EngineRequest
    prompt: Future[Prompt]
    grammar: Future[GrammarState] | None = None

    @property
    def pending_inputs(self) -> list[Future[Any]]:
        return [self.prompt] if self.grammar is None else [self.prompt, self.grammar]

    @property
    def is_ready(self) -> bool:
        return all(pending_input.done() for pending_input in self.pending_inputs)

    def cancel_inputs(self) -> None:
        """Nobody waits any more: what has not begun need not."""
        for pending_input in self.pending_inputs:
            pending_input.cancel()

    def inputs(self) -> tuple[Prompt, GrammarState | None]:
        """What a slot begins with, once it is ready.  Raises InvalidRequest, WorkerDied."""
        prompt = _result(self.prompt, "the prompt could not be read")
        if self.grammar is None:
            return prompt, None
        return prompt, _result(self.grammar, "the grammar could not be compiled")


def _result(future: Future[T], message: str) -> T:
    error = future.exception()
    if isinstance(error, WorkerDied):
        raise WorkerDied(f"{message}: {error}") from error
    if error is not None and not isinstance(error, InvalidRequest):
        # Border: no process for it could be had, or a library gave up.  It costs one answer.
        log.error("%s", message, exc_info=error)
        raise InvalidRequest(f"{message}: {error}") from error
    return future.result()


class RequestQueue:
    """Only the loop's thread touches it; grammars are compiled in another."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._compiler = GrammarCompiler(vocabulary)
        self._waiting: dict[int, QueuedRequest] = {}  # by request, the first to come first

    def __len__(self) -> int:
        return len(self._waiting)

    def append(
        self, request_id: int, request: EngineRequest, prompt: Prompt | Future[Prompt]
    ) -> None:
        if isinstance(prompt, Prompt):
            prompt = _completed(prompt)
        grammar = None
        if request.grammar is not None:
            grammar = self._compiler.submit(request.grammar)
        self._waiting[request_id] = QueuedRequest(request_id, request, prompt, grammar)

    def first_ready(self) -> QueuedRequest | None:
        """Who is next among those that could begin at once."""
        return next((waiting for waiting in self._waiting.values() if waiting.is_ready), None)

    def remove(self, request_id: int) -> None:
        if (waiting := self._waiting.pop(request_id, None)) is not None:
            waiting.cancel_inputs()

    def remove_all(self) -> Iterator[QueuedRequest]:
        removed, self._waiting = self._waiting, {}
        for waiting in removed.values():
            waiting.cancel_inputs()
            yield waiting

    def wait_for_inputs(self, encoding: Iterable[Future[None]] = ()) -> None:
        """Give what others are at work on a moment, where there is nothing else to do."""
        pending = [
            pending_input
            for waiting in self._waiting.values()
            for pending_input in waiting.pending_inputs
            if not pending_input.done()
        ]
        pending += encoding
        if pending:
            wait(pending, _MAX_WAIT_S, return_when=FIRST_COMPLETED)


def _completed(prompt: Prompt) -> Future[Prompt]:
    future: Future[Prompt] = Future()
    future.set_result(prompt)
    return future
