"""The right to use a resident model until it is released: the seam between daemon and engines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from specd import core


class Engine(Protocol):
    """One engine, embedded or remote, from its load to its end; `runner.Process` is the first."""

    async def ready(self) -> core.EngineFacts:
        """Facts once loaded; SpecdError where the load failed."""

    def stop(self) -> None:
        """Ask for the end, in any state."""

    async def ended(self) -> object:
        """Returns once it is gone, asked to or not, or given up: see `is_stuck`."""

    @property
    def is_stuck(self) -> bool:
        """It was given up and is still there: not even SIGKILL ended it."""

    def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        """Started and Tokens, then exactly one Done or Failed; closing it early frees the slot."""

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        """Tokens of a prompt, those of its images negative; EngineCrashed where the engine died."""

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; EngineCrashed where the engine died, InvalidRequest."""

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        """The vector of `text`, of an engine loaded to embed; SpecdError says why there is none.

        n_ctx: tokens of the text at most; None is the engine's whole context.
        """


@dataclass(frozen=True, slots=True)
class Lease:
    """facts.n_ctx is what a prompt must fit.  count: is told how each answer ended that did.

    drafter: the weights that it was to be loaded with beside the target's; None for none.
    """

    facts: core.EngineFacts
    engine: Engine
    count: Callable[[core.Done], None] = lambda _done: None
    drafter: str | None = None

    async def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        async with aclosing(self.engine.generate(request)) as events:
            async for event in events:
                if isinstance(event, core.Done):
                    self.count(event)
                yield event

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        return await self.engine.tokenize(*pieces, add_bos=add_bos)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return await self.engine.detokenize(tokens)

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        return await self.engine.embed(text, truncate=truncate, n_ctx=n_ctx)
