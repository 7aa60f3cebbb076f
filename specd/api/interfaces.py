"""What the HTTP edge asks of the rooms behind it, as Protocols that fakes can implement."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specd import core
from specd.create import CreateRequest
from specd.metrics import Metrics, State
from specd.scheduler import Resident
from specd.settings import HostAddress
from specd.store import ModelInfo, ModelSummary, Name


class Generation(Protocol):
    def generate(self, request: core.GenerateRequest, /) -> AsyncIterator[core.Delta | core.Done]:
        """An async generator; exactly one Done, last.  Raises SpecdError; closing it cancels."""

    async def embed(self, request: core.EmbedRequest, /) -> core.Embeddings:
        """One vector per text, not normalised.  Raises SpecdError."""

    async def load(
        self, model: str, options: Mapping[str, object], keep_alive_s: float | None, /
    ) -> None:
        """Return when the model is ready to answer."""

    async def unload(self, model: str, /) -> None:
        """Let the model leave when it is idle; nothing happens where it is not loaded."""

    async def count_tokens(self, request: core.GenerateRequest, /) -> int:
        """Of the whole prompt; loads the model.  Raises SpecdError."""

    async def pair(self, model: core.ModelRef, /) -> core.Pair:
        """Its drafter, were it loaded now, or why it has none."""

    async def render(self, request: core.GenerateRequest, /) -> str:
        """Return the prompt as the engine would be given it."""


class Library(Protocol):
    """Reads files: the edge calls it in a thread."""

    def list(self) -> Sequence[ModelSummary]:
        """Newest first."""

    def resolve(self, name: str, /) -> core.ModelRef:
        """Raises InvalidName, ModelNotFound, StoreError; Unsupported for a model elsewhere."""

    def show(self, name: str, /, *, verbose: bool = False) -> ModelInfo:
        """Raises as `resolve` does."""


class Registry(Protocol):
    """Async generators; closing one is how a client leaves.

    They raise InvalidName, RegistryError, StoreError and Unavailable.
    """

    def pull(self, model: str, /, *, insecure: bool) -> AsyncIterator[core.Progress]: ...
    def push(self, model: str, /, *, insecure: bool) -> AsyncIterator[core.Progress]: ...


class Scheduler(Protocol):
    def residents(self) -> Sequence[Resident]: ...


class Settings(Protocol):
    """origins: OLLAMA_ORIGINS.  host: where the daemon listens."""

    @property
    def origins(self) -> tuple[str, ...]: ...
    @property
    def host(self) -> HostAddress: ...


class Creator(Protocol):
    def create(self, request: CreateRequest, /) -> AsyncIterator[core.Progress]:
        """The last line is `success`.  Raises SpecdError; closing it ends the work."""


class Writer(Protocol):
    """Digests are "sha256:<64 hex digits>".  Raises StoreError."""

    async def copy(self, source: Name, destination: Name, /) -> None:
        """Raises ModelNotFound."""

    async def delete(self, name: Name, /) -> None:
        """Raises ModelNotFound."""

    async def has_blob(self, digest: str, /) -> bool: ...

    async def receive(self, digest: str, chunks: AsyncIterator[bytes], /) -> None:
        """Store a blob; raises InvalidRequest where what comes has another digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServices:
    """What changes the store."""

    writer: Writer
    creator: Creator


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """wall_ns: Unix time.  steady_ns: for durations."""

    wall_ns: Callable[[], int] = time.time_ns
    steady_ns: Callable[[], int] = time.monotonic_ns


async def _empty_state() -> State:
    return State()


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """What whoever watches the daemon is told.

    state: how things stand now.  not_ready: why no request is accepted, "" where they are.
    """

    metrics: Metrics = field(default_factory=Metrics)
    state: Callable[[], Awaitable[State]] = _empty_state
    not_ready_reason: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What every dialect's handlers are given.

    efforts: what is being done about a missing drafter, a sentence or "".
    """

    generation: Generation
    library: Library
    scheduler: Scheduler
    clock: Clock
    drafter_fetch_status: Callable[[core.Pair], str]
