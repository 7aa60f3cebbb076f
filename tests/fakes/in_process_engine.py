"""An engine without a process, and a generation whose services hold one model and that engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from specd import core, errors
from specd.runner import Completions, Embedder, Tokenizer
from specd.scheduler import Lease, LoadedEngine
from specd.scheduler.runner_ref import as_local

DRAFTER = core.Drafter(name="tinier", weights=Path("/m/tinier.gguf"), source="user")


class FakeEngine:
    """Implements all of `Engine`; a test overrides the methods that it needs."""

    pid = None
    chats = None
    is_stuck = False

    @property
    def completions(self) -> Completions:
        return self

    @property
    def tokenizer(self) -> Tokenizer:
        return self

    @property
    def embedder(self) -> Embedder:
        return self

    async def ready(self) -> core.EngineFacts:
        raise NotImplementedError

    def stop(self) -> None:
        """Do nothing: the engine has ended."""

    async def ended(self) -> None:
        """Return at once: the engine has ended."""

    def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        raise NotImplementedError

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        raise NotImplementedError

    async def detokenize(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        raise NotImplementedError


class FakeServices:
    """The library, the pairs and the scheduler of a `Generation`: one model, leased at once.

    drafter: the file of the drafter that each lease reports.
    """

    engine: FakeEngine

    def __init__(
        self,
        model: core.ModelRef,
        engine: FakeEngine,
        facts: core.EngineFacts,
        drafter: str | None = None,
    ) -> None:
        self.model = model
        self.engine = engine
        self.facts = facts
        self.drafter = drafter
        self.found = core.Pair(target=model, drafter=DRAFTER)
        self.leased: list[tuple[core.EngineSpec, float | None]] = []
        self.n_released = self.n_reloads = 0
        self.unloaded: list[core.ModelRef] = []

    def resolve(self, name: str) -> core.ModelRef:
        if name not in {self.model.name, self.model.name.partition(":")[0]}:
            raise errors.ModelNotFound(name)
        return self.model

    def pair(self, target: core.ModelRef) -> core.Pair:
        return self.found

    @asynccontextmanager
    async def lease(
        self,
        spec: core.LoadSpec,
        model: core.ModelRef,
        pair: core.Pair,
        keep_alive_s: float | None = None,
    ) -> AsyncIterator[Lease]:
        self.leased.append((as_local(spec), keep_alive_s))
        try:
            yield Lease(self._loaded(), self.reload)
        finally:
            self.n_released += 1

    async def reload(self, crash: errors.SpecdError) -> LoadedEngine:
        self.n_reloads += 1
        return self._loaded()

    def _loaded(self) -> LoadedEngine:
        return LoadedEngine(self.engine, self.facts, self.drafter)

    def unload(self, model: core.ModelRef) -> None:
        self.unloaded.append(model)
