"""One request to an engine, from the question to its one terminal event."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from specd import core
from specd.errors import EngineError


class Engine(Protocol):
    """What a bench needs of `runner.Process`."""

    def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]: ...


@dataclass(frozen=True, slots=True)
class EngineReply:
    """A whole answer; logprobs where they were asked for."""

    text: str
    logprobs: tuple[core.TokenLogprob, ...]
    done: core.Done


async def ask(engine: Engine, request: core.EngineRequest) -> EngineReply:
    """EngineError with the engine's own words."""
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
