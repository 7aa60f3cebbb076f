"""The routes `/v1/*`, except Anthropic's."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable

from aiohttp import web

from specd.api import lookup
from specd.api.error_handling import json_reply, routes
from specd.api.interfaces import Services
from specd.api.openai.audio import TranscriptionRoute
from specd.api.openai.chat import ChatRoute
from specd.api.openai.completions import CompletionsRoute
from specd.api.openai.embeddings import EmbeddingsRoute
from specd.api.openai.errors import error_reply
from specd.api.openai.responses.route import ResponsesRoute
from specd.store import name as names


class OpenAIRoutes:
    """The routes.  draw_id: returns a random number from 0 to 998 for the id of an answer."""

    def __init__(self, services: Services, draw_id: Callable[[], int]) -> None:
        self._library = services.library
        self._chat = ChatRoute(services, draw_id)
        self._completions = CompletionsRoute(services, draw_id)
        self._responses = ResponsesRoute(services, draw_id)
        self._transcriptions = TranscriptionRoute(services, draw_id)
        self._embeddings = EmbeddingsRoute(services)

    def table(self) -> list[web.RouteDef]:
        return routes(
            error_reply,
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._completions),
            ("POST", "/v1/responses", self._responses),
            ("POST", "/v1/embeddings", self._embeddings),
            ("POST", "/v1/audio/transcriptions", self._transcriptions),
            ("GET", "/v1/models", self.models),
            # A name may have slashes, which Ollama cannot route; a trailing one is redirected.
            ("GET", "/v1/models/{model:.*[^/]}", self.model),
        )

    async def models(self, _: web.Request) -> web.Response:
        """List the models; `data` is null for an empty store, as in Ollama."""
        found = await asyncio.to_thread(self._library.list)
        entries = [_model_object(model.name, model.modified_at) for model in found]
        return json_reply({"object": "list", "data": entries or None})

    async def model(self, request: web.Request) -> web.Response:
        """Answer with one model, under the id that the client sent."""
        sent_id = request.match_info["model"]
        info = await lookup.find_info(self._library, sent_id)
        return json_reply(_model_object(sent_id, info.summary.modified_at))


def _model_object(model_id: str, modified_at: dt.datetime) -> dict[str, object]:
    return {
        "id": model_id,
        "object": "model",
        "created": int(modified_at.timestamp()),
        "owned_by": names.parse(model_id).namespace,
    }
