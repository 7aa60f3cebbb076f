"""The services that the HTTP API uses, as Protocols that fakes can implement."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
        """Yield deltas, then exactly one Done.  Raises SpecdError; closing it cancels.

        A client that has seen the Done finds the slot free.
        """

    async def embed(self, request: core.EmbedRequest, /) -> core.Embeddings:
        """Return one vector per text, not normalised.  Raises SpecdError."""

    async def load(self, request: core.LoadRequest, /) -> None:
        """Load the model; return once it can answer.  Raises SpecdError."""

    async def unload(self, model: core.ModelRef, /) -> None:
        """Unload the model once it is idle; do nothing if it is not loaded."""

    async def count_tokens(self, request: core.GenerateRequest, /) -> int:
        """Return the tokens of the whole prompt; load the model for it.  Raises SpecdError."""

    async def pair(self, model: core.ModelRef, /) -> core.Pair:
        """Return the drafter that a load would use now, or why there is none."""

    async def render(self, request: core.GenerateRequest, /) -> str:
        """Return the prompt as the engine would get it."""


class Library(Protocol):
    """All models that requests can name.  It reads files, so call it in a thread."""

    def list(self) -> Sequence[ModelSummary]:
        """Return all models, newest first."""

    def resolve(self, name: str, /) -> core.ModelRef:
        """Return the model of a name.

        Raises InvalidName, ModelNotFound, StoreError; Unsupported for a remote model.
        """

    def show(self, name: str, /, *, verbose: bool = False) -> ModelInfo:
        """Return the details of a model.  Raises like `resolve`."""


class Registry(Protocol):
    """Transfers from and to registries, as async generators; closing one cancels it.

    They raise InvalidName, RegistryError, StoreError and Unavailable.
    """

    def pull(self, model: str, /, *, insecure: bool) -> AsyncIterator[core.Progress]: ...
    def push(self, model: str, /, *, insecure: bool) -> AsyncIterator[core.Progress]: ...


class Scheduler(Protocol):
    def residents(self) -> Sequence[Resident]: ...


class Settings(Protocol):
    """The settings of the API.  origins: OLLAMA_ORIGINS.  host: address of the daemon."""

    @property
    def origins(self) -> tuple[str, ...]: ...
    @property
    def host(self) -> HostAddress: ...


class Creator(Protocol):
    def create(self, request: CreateRequest, /) -> AsyncIterator[core.Progress]:
        """Yield progress; the last line is `success`.  Raises SpecdError; closing it cancels."""


class Writer(Protocol):
    """The operations that change the store.

    Digests are "sha256:<64 hex digits>".  All methods raise StoreError.
    """

    async def copy(self, source: Name, destination: Name, /) -> None:
        """Copy a model to another name.  Raises ModelNotFound."""

    async def delete(self, name: Name, /) -> None:
        """Delete a model.  Raises ModelNotFound."""

    async def has_blob(self, digest: str, /) -> bool: ...

    async def receive(self, digest: str, chunks: AsyncIterator[bytes], /) -> None:
        """Store a blob.  Raises InvalidRequest if its digest differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServices:
    """The services that change the store."""

    writer: Writer
    creator: Creator


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clocks in nanoseconds.  wall_ns: Unix time.  steady_ns: for durations."""

    wall_ns: Callable[[], int] = time.time_ns
    steady_ns: Callable[[], int] = time.monotonic_ns


async def _empty_state() -> State:
    return State()


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """The services for monitoring.

    state: returns the current state.  not_ready_reason: returns why requests are not accepted, or
    "" while they are.
    """

    metrics: Metrics = field(default_factory=Metrics)
    state: Callable[[], Awaitable[State]] = _empty_state
    not_ready_reason: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services that every dialect's handlers use.

    drafter_fetch_status: returns a sentence about the pull of a missing drafter, or "".
    """

    generation: Generation
    library: Library
    scheduler: Scheduler
    clock: Clock
    drafter_fetch_status: Callable[[core.Pair], str]
