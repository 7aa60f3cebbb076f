"""The routes of `/v1/*`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from specd.api import lookup
from specd.api.error_handling import json_reply, route
from specd.api.interfaces import Services
from specd.api.openai.audio import TranscriptionRoute
from specd.api.openai.chat import ChatRoute
from specd.api.openai.completions import CompletionsRoute
from specd.api.openai.embeddings import EmbeddingsRoute
from specd.api.openai.errors import error_reply
from specd.api.openai.models import model_object, models_object
from specd.api.openai.responses.route import ResponsesRoute


class OpenAIRoutes:
    """draw_id: a number of 0..998, as Ollama draws one for each completion."""

    def __init__(self, services: Services, draw_id: Callable[[], int]) -> None:
        self._library = services.library
        self._chat = ChatRoute(services, draw_id)
        self._completions = CompletionsRoute(services, draw_id)
        self._responses = ResponsesRoute(services, draw_id)
        self._transcriptions = TranscriptionRoute(services, draw_id)
        self._embeddings = EmbeddingsRoute(services)

    def table(self) -> list[web.RouteDef]:
        rows: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._completions),
            ("POST", "/v1/responses", self._responses),
            ("POST", "/v1/embeddings", self._embeddings),
            ("POST", "/v1/audio/transcriptions", self._transcriptions),
            ("GET", "/v1/models", self.models),
            # With the slashes that Ollama cannot route; one at the end is redirected away.
            ("GET", "/v1/models/{model:.*[^/]}", self.model),
        ]
        return [route(method, path, handler, error_reply) for method, path, handler in rows]

    async def models(self, _: web.Request) -> web.Response:
        return json_reply(models_object(await asyncio.to_thread(self._library.list)))

    async def model(self, request: web.Request) -> web.Response:
        sent_id = request.match_info["model"]
        info = await lookup.find_info(self._library, sent_id)
        return json_reply(model_object(sent_id, info.summary.modified_at))
