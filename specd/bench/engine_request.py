"""One request to an engine and its whole answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from specd import core
from specd.errors import EngineError


class Engine(Protocol):
    """The part of `runner.Process` that a bench uses."""

    def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]: ...


@dataclass(frozen=True, slots=True)
class EngineReply:
    """A whole answer, with logprobs where the request asked for them."""

    text: str
    logprobs: tuple[core.TokenLogprob, ...]
    done: core.Done


async def ask(engine: Engine, request: core.EngineRequest) -> EngineReply:
    """Return the whole answer.  Raises EngineError with the engine's message."""
    pieces: list[str] = []
    logprobs: list[core.TokenLogprob] = []
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            match event:
                case core.Token():
                    pieces.append(event.text)
                    logprobs += event.logprobs
                case core.Done():
                    return EngineReply("".join(pieces), tuple(logprobs), event)
                case core.Failed():
                    raise EngineError(event.message)
    raise AssertionError("a request ended without a terminal event")
