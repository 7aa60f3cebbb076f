"""One request as the outside sees it: filled in by the rooms that it passes, read at its end."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from specd import core

_VALID_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def new_id() -> str:
    """Short, and no other request's: `req_` and 16 hex digits."""
    return f"req_{secrets.token_hex(8)}"


def request_id(sent: str) -> str:
    """The id that a client sent, where it is one that can stand in a log; else a new one."""
    return sent if _VALID_ID.fullmatch(sent) else new_id()


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord:
    """What is known of one request so far; empty fields are not known, or do not apply.

    Nothing in it was said by the client but `id` and `path`: model is the name of one that is in
    the store.  route: the pattern that fitted.  path: as it was asked for, where none did.
    key: what stands for the API key that was used.  error: the kind of the error, not its words.
    left: the client did not wait for the end.  waited_s, loading_s: for the model, and how much of
    that a load took.  clock: seconds.
    """

    id: str = field(default_factory=new_id)
    dialect: str = ""
    route: str = ""
    path: str = ""
    method: str = ""
    client: str = ""
    key: str = ""
    clock: Callable[[], float] = time.perf_counter
    started: float = 0.0
    ended: float = 0.0
    status: int = 0
    error: str = ""
    left: bool = False
    model: str = ""
    is_generation: bool = False
    waited_s: float = 0.0
    loading_s: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    begun: core.Started | None = None
    begun_at: float = 0.0
    n_tokens: int = 0
    n_reported: int = 0
    done: core.Done | None = None
    n_texts: int = 0
    n_text_tokens: int = 0
    gaps: Callable[[str], Callable[[float], None]] = lambda _model: lambda _gap_s: None
    on_gap: Callable[[float], None] = lambda _gap_s: None

    def begin_answer(self, model: str) -> None:
        """An answer of that model is to come."""
        self.model, self.is_generation, self.on_gap = model, True, self.gaps(model)

    def add_wait(self, waited_s: float, loading_s: float) -> None:
        """For the right to use a model; more than once where an engine died."""
        self.waited_s += waited_s
        self.loading_s += loading_s

    def slot_assigned(self, begun: core.Started) -> None:
        """An engine's slot has it; more than once where an engine died."""
        self.begun, self.begun_at = begun, self.clock()

    def add_tokens(self, n_tokens: int) -> None:
        """Tokens of one step have come: called for each, so it does next to nothing."""
        now = self.clock()
        self.n_tokens += n_tokens
        if not self.first_token_at:
            self.first_token_at = now
        else:
            self.on_gap(now - self.last_token_at)
        self.last_token_at = now

    def add_embeddings(self, found: core.Embeddings) -> None:
        self.n_texts = len(found.entries)
        self.n_text_tokens = sum(entry.n_tokens for entry in found.entries)

    # ------------------------------------------------------------------ read at the end

    @property
    def usage(self) -> core.Usage:
        """The engine's, where it came to say it; what was seen of a broken answer."""
        if self.done is not None:
            return self.done.usage
        begun = self.begun or core.Started()
        return core.Usage(
            n_prompt=begun.n_prompt, n_cached=begun.n_cached, n_generated=self.n_tokens
        )

    @property
    def finish(self) -> str:
        """How an answer ended: stop, length, abort or error.

        Of what is no answer "", or abort where its client left before the end.
        """
        if self.left:
            return "abort"
        if not self.is_generation:
            return ""
        if self.error or self.done is None:
            return "error"
        return str(self.done.reason)

    @property
    def total_s(self) -> float:
        return self.ended - self.started

    @property
    def ttft_s(self) -> float | None:
        return self.first_token_at - self.started if self.first_token_at else None

    @property
    def queue_s(self) -> float:
        """Until an engine's slot had it, or for good where none ever did, but for the load."""
        if not self.is_generation:
            return self.waited_s - self.loading_s
        until = self.begun_at or self.first_token_at or self.ended
        return max(until - self.started - self.loading_s, 0.0)

    @property
    def token_s(self) -> float | None:
        """Mean of the tokens after the first."""
        if self.n_tokens < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.n_tokens - 1)


_CURRENT: ContextVar[RequestRecord | None] = ContextVar("specd_request", default=None)


def current_record() -> RequestRecord:
    """Of the request that this code works for; one that nobody reads where there is none."""
    return _CURRENT.get() or RequestRecord()


def current_request_id() -> str:
    """Its id, "" where no request is served."""
    record = _CURRENT.get()
    return record.id if record is not None else ""


@contextmanager
def record_context(record: RequestRecord) -> Iterator[None]:
    """What runs in this block, and the tasks that it starts, work for that request."""
    token = _CURRENT.set(record)
    try:
        yield
    finally:
        _CURRENT.reset(token)
