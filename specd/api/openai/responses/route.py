"""`POST /v1/responses`, in the order in which Ollama does it."""

from __future__ import annotations

from aiohttp import web

from specd.api import lookup
from specd.api.body import convert_body
from specd.api.openai import shared_fields
from specd.api.openai.chat import check_chat
from specd.api.openai.errors import NoSuchResponse
from specd.api.openai.reply import AnswerRoute
from specd.api.openai.responses.body import ResponsesBody, read_responses
from specd.api.openai.responses.convert import to_prompt, to_request
from specd.api.openai.responses.writer import ResponseWriter
from specd.errors import InvalidRequest


class ResponsesRoute(AnswerRoute):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await read_responses(request)
        _refuse_memory(body)
        prompt = await convert_body(request, lambda: to_prompt(body))
        think = shared_fields.think(body.reasoning.get("effort", ""))
        if not body.model:
            raise InvalidRequest("model is required")
        ref = await lookup.find_model(self._library, body.model)
        check_chat(ref, body.model, prompt, think)
        core_request = await convert_body(request, lambda: to_request(body, ref, prompt, think))
        return await self._reply(request, core_request, self._writer(body), streamed=body.stream)

    def _writer(self, body: ResponsesBody) -> ResponseWriter:
        return ResponseWriter(
            body=body,
            number=self._draw_id() * 1000 + self._draw_id(),
            now=self._unix_s,
        )


def _refuse_memory(body: ResponsesBody) -> None:
    """Ollama ignores both and answers as if nothing had been said before."""
    if body.previous_response_id:
        raise NoSuchResponse(str(body.previous_response_id))
    if body.conversation:
        raise InvalidRequest(
            "conversation is not supported: nothing is stored, send the whole conversation as input"
        )
