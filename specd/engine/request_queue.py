"""Requests that wait for a slot, first come, first served.

Later requests overtake one whose grammar or prompt is still being prepared by another thread.
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

#: Longest time that a loop without other work waits before it reads its messages again.
_MAX_WAIT_S = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """A request that waits.  prompt: its tokens, fitted to the context."""

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
        """Cancel the preparations that have not begun."""
        for pending_input in self.pending_inputs:
            pending_input.cancel()

    def inputs(self) -> tuple[Prompt, GrammarState | None]:
        """Return the prompt and grammar of a ready request.  Raises InvalidRequest, WorkerDied."""
        prompt = _result(self.prompt, "the prompt could not be read")
        if self.grammar is None:
            return prompt, None
        return prompt, _result(self.grammar, "the grammar could not be compiled")


def _result(future: Future[T], message: str) -> T:
    error = future.exception()
    if isinstance(error, WorkerDied):
        raise WorkerDied(f"{message}: {error}") from error
    if error is not None and not isinstance(error, InvalidRequest):
        # Boundary: a library failed, or no process could be started.  Only this request fails.
        log.error("%s", message, exc_info=error)
        raise InvalidRequest(f"{message}: {error}") from error
    return future.result()


class RequestQueue:
    """The queue of one loop; only the loop's thread uses it.  Another thread compiles grammars."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.compiler = GrammarCompiler(vocabulary)
        self._waiting: dict[int, QueuedRequest] = {}  # by request id, oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def append(
        self, request_id: int, request: EngineRequest, prompt: Prompt | Future[Prompt]
    ) -> None:
        if isinstance(prompt, Prompt):
            finished: Future[Prompt] = Future()
            finished.set_result(prompt)
            prompt = finished
        grammar = None
        if request.grammar is not None:
            grammar = self.compiler.submit(request.grammar)
        self._waiting[request_id] = QueuedRequest(request_id, request, prompt, grammar)

    def first_ready(self) -> QueuedRequest | None:
        """Return the oldest request that can begin at once, or None."""
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
        """Wait briefly for preparations and for `encoding`; call it if there is no other work."""
        pending = [
            pending_input
            for waiting in self._waiting.values()
            for pending_input in waiting.pending_inputs
            if not pending_input.done()
        ]
        pending += encoding
        if pending:
            wait(pending, _MAX_WAIT_S, return_when=FIRST_COMPLETED)
