"""The routes of `/v1/*`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Handler

from specd import core
from specd.api import lookup
from specd.api.answer import answer_events, whole_answer
from specd.api.border import closing, json_reply, route
from specd.api.openai.completion import ChunkWriter, Json, completion
from specd.api.openai.convert import chat_request, effort, to_messages
from specd.api.openai.errors import error_event, error_reply
from specd.api.openai.models import model_object, models_object
from specd.api.openai.schema import ChatBody, read_chat
from specd.api.ports import Rooms
from specd.api.streaming import SSE, sse_event, stream
from specd.api.wire import dump
from specd.errors import InvalidRequest, NotImplementedHere


class OpenAIRoutes:
    """draw_id: a number of 0..998, as Ollama draws one for each completion."""

    def __init__(self, rooms: Rooms, draw_id: Callable[[], int]) -> None:
        self._generation = rooms.generation
        self._library = rooms.library
        self._clock = rooms.clock
        self._draw_id = draw_id

    def table(self) -> list[web.RouteDef]:
        rows: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/chat/completions", self.chat),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model}", self.model),
        ]
        return [route(method, path, handler, error_reply) for method, path, handler in rows]

    async def models(self, _: web.Request) -> web.Response:
        return json_reply(models_object(await asyncio.to_thread(self._library.list)))

    async def model(self, request: web.Request) -> web.Response:
        sent_id = request.match_info["model"]
        info = await lookup.find_info(self._library, sent_id)
        return json_reply(model_object(sent_id, info.summary.modified_at))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await read_chat(request)
        if not body.messages:
            raise InvalidRequest("[] is too short - 'messages'")
        messages, think = to_messages(body.messages), effort(body)
        lookup.check_top_logprobs(body.top_logprobs)
        if not body.model:
            raise InvalidRequest("model is required")
        ref = await lookup.find_model(self._library, body.model)
        _check(body, ref, messages, think)
        asked = chat_request(body, ref, messages, think)
        head: Json = {
            "id": f"chatcmpl-{self._draw_id()}",
            "created": self._clock.wall_ns() // 10**9,
        }
        if body.debug_render_only:
            prompt = await asyncio.to_thread(self._generation.render, asked)
            return json_reply({"model": body.model, "_debug_info": {"rendered_template": prompt}})
        if body.stream:
            writer = ChunkWriter(head, body.model, body.include_usage)
            events = self._events(asked, writer)
            return await stream(request, events, content_type=SSE, error_piece=error_event)
        answer = await whole_answer(self._generation, asked)
        return json_reply(completion(head, body.model, answer.whole, answer.done))

    async def _events(
        self, asked: core.GenerateRequest, writer: ChunkWriter
    ) -> AsyncIterator[bytes]:
        async with closing(answer_events(self._generation, asked)) as events:
            async for event in events:
                if isinstance(event, core.Done):
                    yield _sse(writer.last(event)) + sse_event(b"[DONE]")
                else:
                    yield _sse(writer.pieces(event))


def _sse(chunks: Iterable[Json]) -> bytes:
    return b"".join(sse_event(dump(chunk)) for chunk in chunks)


def _check(
    body: ChatBody,
    ref: core.ModelRef,
    messages: tuple[core.Message, ...],
    think: bool | str | None,
) -> None:
    """What the model cannot do, then what this version does not do yet."""
    lookup.require_thinking(ref, body.model, think)
    lookup.require_completion(ref, body.model, "chat")
    if body.tools:
        lookup.require(ref, "tools")
        raise NotImplementedHere("tools are not supported by this version of specd")
    if any(message.images for message in messages):
        lookup.refuse_images(ref)
    if body.response_format.get("type") in {"json_object", "json_schema"}:
        raise NotImplementedHere("response_format is not supported by this version of specd")
