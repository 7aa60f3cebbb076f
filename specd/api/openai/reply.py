"""Sends an answer as one object, or as the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Protocol

from aiohttp import web

from specd import core
from specd.api.body import convert_body
from specd.api.error_handling import aclosing, json_reply
from specd.api.interfaces import Services
from specd.api.openai.errors import error_event
from specd.api.streaming import SSE, collect_answer, stream
from specd.errors import SpecdError

Json = dict[str, object]


class Writer(Protocol):
    """Writes one answer of a route, either as a stream or whole."""

    def pieces(self, delta: core.Delta, /) -> bytes:
        """Return the events for a delta."""

    def last(self, done: core.Done, /) -> bytes:
        """Return the last events."""

    def failed(self, error: SpecdError, /) -> bytes:
        """Return the last event of a stream that failed after its status was sent."""
        return error_event(error)

    def whole(self, whole: core.Delta, done: core.Done, /) -> Json:
        """Return the object of an answer without a stream."""


class AnswerRoute:
    """Base class of the routes that generate text.  draw_id: as in OpenAIRoutes."""

    def __init__(self, services: Services, draw_id: Callable[[], int]) -> None:
        self._generation = services.generation
        self._library = services.library
        self._clock = services.clock
        self._draw_id = draw_id

    def _unix_s(self) -> int:
        return self._clock.wall_ns() // 10**9

    async def _reply(
        self,
        request: web.Request,
        core_request: core.GenerateRequest,
        writer: Writer,
        *,
        streamed: bool,
    ) -> web.StreamResponse:
        """Send the answer; for an empty prompt, load the model and send an empty answer."""
        answer = self._answer(core_request)
        if streamed:
            events = self._events(request, answer, writer)
            return await stream(request, events, content_type=SSE, error_piece=writer.failed)
        collected = await collect_answer(answer)
        return await convert_body(
            request, lambda: json_reply(writer.whole(collected.whole, collected.done))
        )

    async def _answer(
        self, core_request: core.GenerateRequest
    ) -> AsyncIterator[core.Delta | core.Done]:
        if not _is_empty(core_request.prompt):
            async with aclosing(self._generation.generate(core_request)) as events:
                async for event in events:
                    yield event
        else:
            await self._generation.load(core_request)
            yield core.Done(
                reason=core.StopReason.STOP, usage=core.Usage(), speculation=core.SpeculationStats()
            )

    async def _events(
        self,
        request: web.Request,
        answer: AsyncIterator[core.Delta | core.Done],
        writer: Writer,
    ) -> AsyncIterator[bytes]:
        """Yield the events; the first and the last may repeat a long request."""
        is_first = True
        async with aclosing(answer):
            async for event in answer:
                write = partial(_write, writer, event)
                is_last = isinstance(event, core.Done)
                yield await convert_body(request, write) if is_first or is_last else write()
                is_first = False


def _is_empty(prompt: core.ChatPrompt | core.TextPrompt) -> bool:
    return not (prompt.text if isinstance(prompt, core.TextPrompt) else prompt.messages)


def _write(writer: Writer, event: core.Delta | core.Done) -> bytes:
    return writer.last(event) if isinstance(event, core.Done) else writer.pieces(event)
