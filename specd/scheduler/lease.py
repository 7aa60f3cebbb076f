"""The right to use a loaded model until it is released, and the interface of an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from specd import core, errors


class Engine(Protocol):
    """One engine, embedded or remote, from its load to its end, such as `runner.Process`."""

    async def ready(self) -> core.EngineFacts:
        """Wait for the load and return its facts; raise SpecdError if it failed."""

    def stop(self) -> None:
        """Ask the engine to end, in any state."""

    async def ended(self) -> object:
        """Return once the engine has ended, or was given up: see `is_stuck`."""

    @property
    def is_stuck(self) -> bool:
        """Whether the engine was given up and still exists: not even SIGKILL ended it."""

    def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        """Yield Started and Tokens, then one Done or Failed; closing it early frees the slot."""

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        """Return the tokens of a prompt, negative for images; raise EngineCrashed if it died."""

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; raise EngineCrashed, or InvalidRequest for an unknown id."""

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        """Return the vector of `text` from an engine loaded to embed; raise SpecdError if it fails.

        n_ctx: most tokens of the text; None is the engine's whole context.
        """


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use a loaded model.  If the engine crashes, errors come after its end.

    facts: of the load; a prompt must fit facts.n_ctx.
    count: called with the Done of each answer that completed.
    drafter: path of the drafter's weights in the engine's spec, None if there is none.
    """

    facts: core.EngineFacts
    engine: Engine
    count: Callable[[core.Done], None] = lambda _done: None
    drafter: str | None = None

    async def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        """Yield the engine's events, as `Engine.generate`."""
        async with aclosing(self.engine.generate(request)) as events:
            async for event in events:
                if isinstance(event, core.Done):
                    self.count(event)
                elif isinstance(event, core.Failed) and event.kind is core.FailureKind.CRASHED:
                    await self.engine.ended()
                yield event

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        async with self._waits_if_crashed():
            return await self.engine.tokenize(*pieces, add_bos=add_bos)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        async with self._waits_if_crashed():
            return await self.engine.detokenize(tokens)

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        async with self._waits_if_crashed():
            return await self.engine.embed(text, truncate=truncate, n_ctx=n_ctx)

    @asynccontextmanager
    async def _waits_if_crashed(self) -> AsyncIterator[None]:
        """Wait for the end of a crashed engine: until then the scheduler would grant it again."""
        try:
            yield
        except errors.EngineCrashed:
            await self.engine.ended()
            raise
