"""Sends an answer: as one object, or as the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Protocol

from aiohttp import web

from specd import core
from specd.api.answer_stream import answer_events, collect_answer
from specd.api.body import convert_body
from specd.api.error_handling import aclosing, json_reply
from specd.api.interfaces import Services
from specd.api.streaming import SSE, stream
from specd.errors import SpecdError

Json = dict[str, object]


class Writer(Protocol):
    """One answer in the words of one route.  It is used for a stream or for a whole, once."""

    def pieces(self, delta: core.Delta, /) -> bytes:
        """The events for what has come."""

    def last(self, done: core.Done, /) -> bytes:
        """The events at the end."""

    def failed(self, error: SpecdError, /) -> bytes:
        """The event in place of the end, when the status is already sent."""

    def whole(self, whole: core.Delta, done: core.Done, /) -> Json:
        """The object of an answer that is not streamed."""


class AnswerRoute:
    """What the routes that answer share.  draw_id: as OpenAIRoutes has it."""

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
        """The answer; to an empty prompt the model is loaded, and says nothing."""
        if _is_empty(core_request.prompt):
            return await self._loaded(request, core_request, writer, streamed=streamed)
        if streamed:
            events = self._events(request, core_request, writer)
            return await stream(request, events, content_type=SSE, error_piece=writer.failed)
        answer = await collect_answer(self._generation, core_request)
        return await convert_body(
            request, lambda: json_reply(writer.whole(answer.whole, answer.done))
        )

    async def _events(
        self, request: web.Request, core_request: core.GenerateRequest, writer: Writer
    ) -> AsyncIterator[bytes]:
        """The first events and the last may repeat the request, however long that is."""
        is_first = True
        async with aclosing(answer_events(self._generation, core_request)) as events:
            async for event in events:
                write = partial(_written, writer, event)
                is_last = isinstance(event, core.Done)
                yield await convert_body(request, write) if is_first or is_last else write()
                is_first = False

    async def _loaded(
        self,
        request: web.Request,
        core_request: core.GenerateRequest,
        writer: Writer,
        *,
        streamed: bool,
    ) -> web.Response:
        await self._generation.load(
            core_request.model, core_request.options, core_request.keep_alive_s
        )
        nothing = core.Done(
            reason=core.StopReason.STOP, usage=core.Usage(), speculation=core.SpeculationStats()
        )
        if streamed:
            body = await convert_body(request, lambda: writer.last(nothing))
            return web.Response(body=body, content_type=SSE)
        return await convert_body(request, lambda: json_reply(writer.whole(core.Delta(), nothing)))


def _is_empty(prompt: core.ChatPrompt | core.TextPrompt) -> bool:
    return not (prompt.text if isinstance(prompt, core.TextPrompt) else prompt.messages)


def _written(writer: Writer, event: core.Delta | core.Done) -> bytes:
    return writer.last(event) if isinstance(event, core.Done) else writer.pieces(event)
