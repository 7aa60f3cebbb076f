"""The right to use a loaded model until it is released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from specd import core, errors
from specd.runner import ChatRequest, Completions, Embedder, Engine, Tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")
E = TypeVar("E", bound=core.Event | core.Delta)


async def _forgotten() -> None:
    """Return at once."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine that is ready.

    facts: of the load.  drafter: path of the drafter's weights in the engine's spec, if any.
    count: called with the Done of each answer that completed.
    forgotten: returns once the engine has ended and the scheduler grants it no more.
    """

    engine: Engine
    facts: core.EngineFacts
    drafter: str | None = None
    count: Callable[[core.Done], None] = lambda _done: None
    forgotten: Callable[[], Awaitable[object]] = _forgotten


class Lease:
    """The right to use a loaded model.

    An answer ends with its first Done or Failed, whatever else the engine sends.  If the engine
    crashes before the first token, the model is loaded again and the request repeated once: the
    engine may have died while idle, but the request may also be the cause.  Errors of a crash come
    after the engine's end: until then the scheduler would grant it again.

    reload: ends the use of the crashed engine and returns a new one.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        reload: Callable[[errors.SpecdError], Awaitable[LoadedEngine]],
    ) -> None:
        self._loaded = loaded
        self._reload = reload
        self._has_crashed = False
        self._renewing = asyncio.Lock()

    @property
    def facts(self) -> core.EngineFacts:
        """The facts of the load; a prompt must fit facts.n_ctx."""
        return self._loaded.facts

    @property
    def drafter(self) -> str | None:
        """Path of the drafter's weights that the engine was loaded with, None without one."""
        return self._loaded.drafter

    @property
    def takes_messages(self) -> bool:
        """Whether the engine renders prompts itself: then use `chat`, else `generate`."""
        return self._loaded.engine.chats is not None

    @property
    def can_tokenize(self) -> bool:
        return self._loaded.engine.tokenizer is not None

    @property
    def can_embed(self) -> bool:
        return self._loaded.engine.embedder is not None

    def generate(self, request: core.EngineRequest) -> core.Stream[core.Event]:
        """Yield the events of `Completions.generate`; an engine that takes messages has none."""
        return self._answer(lambda engine: _completions(engine).generate(request))

    def chat(self, request: ChatRequest) -> core.Stream[core.Delta | core.Done | core.Failed]:
        """Yield the events of `Chats.chat`; only an engine that takes messages has it."""

        def start(engine: Engine) -> core.Stream[core.Delta | core.Done | core.Failed]:
            assert engine.chats is not None, "ask takes_messages first"
            return engine.chats.chat(request)

        return self._answer(start)

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        """Return the tokens of a prompt; ask `can_tokenize` first."""
        return await self._call(
            lambda engine: _tokenizer(engine).tokenize(*pieces, add_bos=add_bos)
        )

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; ask `can_tokenize` first."""
        return await self._call(lambda engine: _tokenizer(engine).detokenize(tokens))

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        """Return the vector of a text; ask `can_embed` first."""
        return await self._call(
            lambda engine: _embedder(engine).embed(text, truncate=truncate, n_ctx=n_ctx)
        )

    async def _answer(self, start: Callable[[Engine], core.Stream[E]]) -> AsyncGenerator[E, None]:
        has_begun = False
        while True:
            with _only_specd_errors():
                async with aclosing(start(self._loaded.engine)) as events:
                    async for event in events:
                        if isinstance(event, core.Done | core.Failed):
                            break
                        has_begun = has_begun or not isinstance(event, core.Started)
                        yield event
                    else:
                        return  # without a Done or a Failed: the caller refuses it
            if isinstance(event, core.Done):
                self._loaded.count(event)
            elif event.kind is core.FailureKind.CRASHED:
                await self._end_crashed(self._loaded)
                if not has_begun and not self._has_crashed:
                    await self._renew(event.error())
                    continue
            yield event
            return

    async def _call(self, act: Callable[[Engine], Awaitable[T]]) -> T:
        while True:
            loaded = self._loaded
            try:
                with _only_specd_errors():
                    return await act(loaded.engine)
            except errors.EngineCrashed as error:
                await self._end_crashed(loaded)
                async with self._renewing:  # many texts of one request are embedded at once
                    if self._loaded is loaded:
                        if self._has_crashed:
                            raise
                        await self._renew(error)

    async def _end_crashed(self, loaded: LoadedEngine) -> None:
        loaded.engine.stop()  # one on another server may have lost the connection only
        await loaded.engine.ended()
        await loaded.forgotten()

    async def _renew(self, crash: errors.SpecdError) -> None:
        """Load the model again.  Raises `crash` if the new context is shorter."""
        self._has_crashed = True
        n_ctx = self.facts.n_ctx
        self._loaded = await self._reload(crash)
        if self.facts.n_ctx < n_ctx:
            raise crash


@contextmanager
def _only_specd_errors() -> Iterator[None]:
    """Turn an unexpected exception of an engine, such as a lost connection, into EngineError."""
    try:
        yield
    except errors.SpecdError:
        raise
    except Exception as error:
        log.exception("an engine failed unexpectedly")
        message = f"the engine failed unexpectedly: {type(error).__name__}"
        raise errors.EngineError(message) from error


def _completions(engine: Engine) -> Completions:
    assert engine.completions is not None, "ask takes_messages first"
    return engine.completions


def _tokenizer(engine: Engine) -> Tokenizer:
    assert engine.tokenizer is not None, "ask can_tokenize first"
    return engine.tokenizer


def _embedder(engine: Engine) -> Embedder:
    assert engine.embedder is not None, "ask can_embed first"
    return engine.embedder
