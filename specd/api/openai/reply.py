"""Sends an answer: as one object, or as the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from aiohttp import web

from specd import core
from specd.api.answer import answer_events, whole_answer
from specd.api.border import closing, json_reply
from specd.api.ports import Generation
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


async def reply(
    request: web.Request,
    generation: Generation,
    asked: core.GenerateRequest,
    writer: Writer,
    *,
    streamed: bool,
) -> web.StreamResponse:
    if streamed:
        events = _events(generation, asked, writer)
        return await stream(request, events, content_type=SSE, error_piece=writer.failed)
    answer = await whole_answer(generation, asked)
    return json_reply(writer.whole(answer.whole, answer.done))


async def _events(
    generation: Generation, asked: core.GenerateRequest, writer: Writer
) -> AsyncIterator[bytes]:
    async with closing(answer_events(generation, asked)) as events:
        async for event in events:
            yield writer.last(event) if isinstance(event, core.Done) else writer.pieces(event)


async def loaded(
    generation: Generation, asked: core.GenerateRequest, writer: Writer, *, streamed: bool
) -> web.Response:
    """To an empty prompt: the model is loaded, and says nothing."""
    await generation.load(asked.model, asked.options, asked.keep_alive_s)
    nothing = core.Done(
        reason=core.StopReason.STOP, usage=core.Usage(), speculation=core.SpeculationStats()
    )
    if streamed:
        return web.Response(body=writer.last(nothing), content_type=SSE)
    return json_reply(writer.whole(core.Delta(), nothing))
