"""The routes `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from specd import core
from specd.api import lookup
from specd.api.anthropic.convert import estimated_tokens, generate_request, to_prompt
from specd.api.anthropic.errors import error_event, error_reply
from specd.api.anthropic.schema import CountBody, MessagesBody
from specd.api.anthropic.writer import EventWriter, message, new_message_id
from specd.api.body import convert_body, read
from specd.api.error_handling import aclosing, json_reply, routes
from specd.api.interfaces import Services
from specd.api.streaming import SSE, collect_answer, stream
from specd.errors import InvalidRequest


class AnthropicRoutes:
    def __init__(self, services: Services) -> None:
        self._generation = services.generation
        self._library = services.library

    def table(self) -> list[web.RouteDef]:
        return routes(
            error_reply,
            ("POST", "/v1/messages", self.messages),
            ("POST", "/v1/messages/count_tokens", self.count_tokens),
        )

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, MessagesBody)
        if not body.model:
            raise InvalidRequest("model is required")
        if body.max_tokens <= 0:
            raise InvalidRequest("max_tokens is required and must be positive")
        core_request, prompt = await self._core_request(request, body)
        if body.stream:
            n_estimated = await convert_body(request, lambda: estimated_tokens(prompt))
            writer = EventWriter(new_message_id(), body.model, n_estimated)
            events = self._events(core_request, writer)
            return await stream(request, events, content_type=SSE, error_piece=error_event)
        answer = await collect_answer(self._generation.generate(core_request))
        return json_reply(message(new_message_id(), body.model, answer.whole, answer.done))

    async def count_tokens(self, request: web.Request) -> web.Response:
        """Answer with the number of tokens of the prompt; load the model to count them."""
        body = await read(request, CountBody)
        if not body.model:
            raise InvalidRequest("model is required")
        core_request, _ = await self._core_request(request, body)
        return json_reply({"input_tokens": await self._generation.count_tokens(core_request)})

    async def _core_request(
        self, request: web.Request, body: CountBody
    ) -> tuple[core.GenerateRequest, core.ChatPrompt]:
        """Convert a body; raise for a model that lacks a capability that the body needs."""
        if not body.messages:
            raise InvalidRequest("messages is required")
        prompt = await convert_body(request, lambda: to_prompt(body))
        ref = await lookup.find_model(self._library, body.model)
        lookup.require_completion(ref, body.model, "chat")
        if prompt.tools:
            lookup.require_capability(ref, "tools")
        if any(turn.images for turn in prompt.messages):
            lookup.require_images(ref)
        return generate_request(body, ref, prompt), prompt

    async def _events(
        self, core_request: core.GenerateRequest, writer: EventWriter
    ) -> AsyncIterator[bytes]:
        async with aclosing(self._generation.generate(core_request)) as events:
            async for event in events:
                if isinstance(event, core.Done):
                    yield b"".join(writer.last(event))
                else:
                    yield b"".join(writer.pieces(event))
