"""`POST /v1/chat/completions`; the order of checks and of keys is Ollama's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from specd import core
from specd.api import lookup
from specd.api.answer_objects import logprob_entries, speculation_object, timings_object
from specd.api.body import convert_body, read
from specd.api.error_handling import json_reply
from specd.api.go_format import debug_info, omit_empty
from specd.api.openai import shared_fields
from specd.api.openai.chat_body import ChatBody, chat_request, to_messages
from specd.api.openai.reply import AnswerRoute, Writer
from specd.api.streaming import sse_event
from specd.errors import InvalidRequest
from specd.go_json_encoder import dump_json

Json = dict[str, object]
END = sse_event(b"[DONE]")


class ChatRoute(AnswerRoute):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, ChatBody)
        if not body.messages:
            raise InvalidRequest("[] is too short - 'messages'")
        prompt = core.ChatPrompt(
            messages=await convert_body(request, lambda: to_messages(body.messages)),
            tools=shared_fields.tools(body.tools, body.tool_choice),
        )
        think = shared_fields.think(body.effort)
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
    """Raise Unsupported if the model lacks a needed capability, in Ollama's order.

    is_answered: False if the prompt is only rendered; then every model accepts images.
    """
    lookup.require_thinking(ref, sent_name, think)
    lookup.require_completion(ref, sent_name, "chat")
    if prompt.tools:
        lookup.require_capability(ref, "tools")
    if is_answered and any(message.images for message in prompt.messages):
        lookup.require_images(ref)


# --------------------------------------------------------------------------- answers


@dataclass(slots=True)
class ChatWriter(Writer):
    """Writes one answer.  id, created (Unix seconds): the same in all chunks.

    Only the first chunk has the role; the chunk with the finish reason has an empty delta.
    """

    id: str
    created: int
    model: str
    include_usage: bool
    _started: bool = False
    _called: bool = False

    def whole(self, whole: core.Delta, done: core.Done) -> Json:
        message: Json = {"role": "assistant", "content": whole.content}
        extra = omit_empty(reasoning=whole.thinking, tool_calls=tool_calls(whole.tool_calls))
        choice: Json = {
            "index": 0,
            "message": message | extra,
            "finish_reason": "tool_calls" if whole.tool_calls else done.reason.value,
        }
        return (
            self._top("chat.completion")
            | {"choices": [choice | logprobs(whole)], "usage": usage(done.usage)}
            | specd_fields(done)
        )

    def pieces(self, delta: core.Delta) -> bytes:
        """Return one chunk, or two for thinking and content; the last has the logprobs."""
        parts: list[Json] = []
        if delta.thinking:
            parts.append({"content": "", "reasoning": delta.thinking})
        if delta.content or delta.tool_calls or not parts:
            self._called |= bool(delta.tool_calls)
            calls = omit_empty(tool_calls=tool_calls(delta.tool_calls))
            parts.append({"content": delta.content} | calls)
        *before, last = parts
        chunks = [self._chunk(part, {}) for part in before]
        return b"".join((*chunks, self._chunk(last, logprobs(delta))))

    def last(self, done: core.Done) -> bytes:
        reason = "tool_calls" if self._called else done.reason.value
        choice: Json = {"index": 0, "delta": {}, "finish_reason": reason}
        opening = b"" if self._started else self._chunk({"content": ""}, {})
        finish = self._event([choice], specd_fields(done))
        counts = self._event([], {"usage": usage(done.usage)}) if self.include_usage else b""
        return opening + finish + counts + END

    def _chunk(self, delta: Json, extra: Json) -> bytes:
        role: Json = {} if self._started else {"role": "assistant"}
        self._started = True
        choice: Json = {"index": 0, "delta": role | delta, "finish_reason": None}
        return self._event([choice | extra], {})

    def _event(self, choices: list[Json], extra: Json) -> bytes:
        top = self._top("chat.completion.chunk")
        return sse_event(dump_json(top | {"choices": choices} | extra))

    def _top(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "fp_ollama",
        }


def tool_calls(calls: Sequence[core.ToolCall]) -> list[Json]:
    return [
        {
            "id": call.id,
            "index": call.index,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for call in calls
    ]


def arguments_text(call: core.ToolCall) -> str:
    """Return the arguments as JSON, with keys in the model's order."""
    return json.dumps(dict(call.arguments), ensure_ascii=False, separators=(",", ":"))


def usage(counts: core.Usage) -> Json:
    return {
        "prompt_tokens": counts.n_prompt,
        "completion_tokens": counts.n_generated,
        "total_tokens": counts.n_prompt + counts.n_generated,
        "prompt_tokens_details": {"cached_tokens": counts.n_cached},
    }


def logprobs(delta: core.Delta) -> Json:
    """Return the logprobs; strict clients require `top_logprobs`, even if it is empty."""
    entries = logprob_entries(delta.logprobs)
    for entry in entries:
        entry.setdefault("top_logprobs", [])
    return {"logprobs": {"content": entries}} if entries else {}


def specd_fields(done: core.Done) -> Json:
    """Return specd's own fields; OpenAI's clients ignore unknown keys."""
    return {
        "timings": timings_object(done.usage, done.speculation),
        "specd": {"speculation": speculation_object(done.speculation)},
    }
