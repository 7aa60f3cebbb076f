"""`POST /v1/chat/completions`, in the order in which Ollama does it."""

from __future__ import annotations

from aiohttp import web

from specd import core
from specd.api import lookup
from specd.api.body import convert_body
from specd.api.error_handling import json_reply
from specd.api.go_format import debug_info
from specd.api.openai import shared_fields
from specd.api.openai.chat_completion import ChatWriter
from specd.api.openai.convert import chat_request, effort, to_messages
from specd.api.openai.reply import AnswerRoute
from specd.api.openai.schema import ChatBody, read_chat
from specd.errors import InvalidRequest


class ChatRoute(AnswerRoute):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await read_chat(request)
        if not body.messages:
            raise InvalidRequest("[] is too short - 'messages'")
        prompt = core.ChatPrompt(
            messages=await convert_body(request, lambda: to_messages(body.messages)),
            tools=shared_fields.tools(body.tools, body.tool_choice),
        )
        think = shared_fields.think(effort(body))
        lookup.check_top_logprobs(body.top_logprobs)
        if not body.model:
            raise InvalidRequest("model is required")
        ref = await lookup.find_model(self._library, body.model)
        check_chat(ref, body.model, prompt, think, is_answered=not body.debug_render_only)
        core_request = await convert_body(request, lambda: chat_request(body, ref, prompt, think))
        if body.debug_render_only:
            info = debug_info(await self._generation.render(core_request), core_request.n_images)
            return json_reply({"model": body.model, "_debug_info": info})
        return await self._reply(request, core_request, self._writer(body), streamed=body.stream)

    def _writer(self, body: ChatBody) -> ChatWriter:
        return ChatWriter(
            id=f"chatcmpl-{self._draw_id()}",
            created=self._unix_s(),
            model=body.model,
            include_usage=body.include_usage,
        )


def check_chat(
    ref: core.ModelRef,
    sent_name: str,
    prompt: core.ChatPrompt,
    think: bool | str | None,
    *,
    is_answered: bool = True,
) -> None:
    """Raise for what the model cannot do, in Ollama's order.

    is_answered: False where the prompt is only rendered, which any model can with images, too.
    """
    lookup.require_thinking(ref, sent_name, think)
    lookup.require_completion(ref, sent_name, "chat")
    if prompt.tools:
        lookup.require_capability(ref, "tools")
    if is_answered and any(message.images for message in prompt.messages):
        lookup.require_images(ref)
