"""The record of one request, for its metrics and its log line."""

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
    """Return a unique id: `req_` and 16 hex digits."""
    return f"req_{secrets.token_hex(8)}"


def request_id(sent: str) -> str:
    """Return the id that a client sent if it is safe to log, else a new one."""
    return sent if _VALID_ID.fullmatch(sent) else new_id()


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord:
    """One request so far; empty fields are unknown or do not apply.

    Only `id` and `path` are text of the client; `model` is a name from the store.
    route: the pattern that matched.  path: the requested path if no route matched.
    key: an identifier of the API key.  error: the kind of the error, not its text.
    left: whether the client left before the end.
    waited_s: seconds spent waiting for the model.  loading_s: the part of it that a load took.
    clock: returns seconds.
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
        """Mark the request as one that the model will answer with text."""
        self.model, self.is_generation, self.on_gap = model, True, self.gaps(model)

    def add_wait(self, waited_s: float, loading_s: float) -> None:
        """Add a wait for the model; called again if an engine died."""
        self.waited_s += waited_s
        self.loading_s += loading_s

    def slot_assigned(self, begun: core.Started) -> None:
        """Record that a slot took the request; called again if an engine died."""
        self.begun, self.begun_at = begun, self.clock()

    def add_tokens(self, n_tokens: int) -> None:
        """Count the tokens of one step.  It is called for each step, so it must be fast."""
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
        """Return the engine's token counts, or those seen so far of an incomplete answer."""
        if self.done is not None:
            return self.done.usage
        begun = self.begun or core.Started()
        return core.Usage(
            n_prompt=begun.n_prompt, n_cached=begun.n_cached, n_generated=self.n_tokens
        )

    @property
    def finish(self) -> str:
        """Return how an answer ended: stop, length, abort or error.

        For other requests: "", or abort if the client left before the end.
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
        """Return the seconds until a slot took the request, or to its end, without the load."""
        if not self.is_generation:
            return self.waited_s - self.loading_s
        until = self.begun_at or self.first_token_at or self.ended
        return max(until - self.started - self.loading_s, 0.0)

    @property
    def token_s(self) -> float | None:
        """Return the mean seconds per token after the first; None below two tokens."""
        if self.n_tokens < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.n_tokens - 1)


_CURRENT: ContextVar[RequestRecord | None] = ContextVar("specd_request", default=None)


def current_record() -> RequestRecord:
    """Return the record of the current request; outside of one, a record that is not used."""
    return _CURRENT.get() or RequestRecord()


def current_request_id() -> str:
    """Return the id of the current request; "" outside of one."""
    record = _CURRENT.get()
    return record.id if record is not None else ""


@contextmanager
def record_context(record: RequestRecord) -> Iterator[None]:
    """Make the record the current one, for this block and the tasks that it starts."""
    token = _CURRENT.set(record)
    try:
        yield
    finally:
        _CURRENT.reset(token)
