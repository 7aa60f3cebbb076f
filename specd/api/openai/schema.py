"""What `/v1/chat/completions` reads from a body: what Ollama's compatibility layer reads.

What it ignores (`n`, `logit_bias`, `user`, ...) is ignored here too, but for two fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from specd.api.body import (
    Fields,
    anything,
    boolean,
    integer,
    list_of,
    mapping,
    number,
    read_fields,
    string,
    struct,
)

_FUNCTION: Final[Fields] = {"name": string, "arguments": string}
_TOOL_CALL: Final[Fields] = {
    "id": string,
    "index": integer,
    "type": string,
    "function": struct(_FUNCTION, "openai.ToolCall"),
}
_MESSAGE: Final[Fields] = {
    "role": string,
    "content": anything,
    "reasoning": string,
    "tool_calls": list_of(struct(_TOOL_CALL, "openai.ToolCall"), "[]openai.ToolCall", null={}),
    "name": string,
    "tool_call_id": string,
}
_FORMAT: Final[Fields] = {
    "type": string,
    "json_schema": struct({"schema": anything}, "openai.JsonSchema"),
}
CHAT: Final[Fields] = {
    "model": string,
    "messages": list_of(struct(_MESSAGE, "openai.Message"), "[]openai.Message", null={}),
    "stream": boolean,
    "stream_options": struct({"include_usage": boolean}, "openai.StreamOptions"),
    "max_tokens": integer,
    "max_completion_tokens": anything,
    "seed": integer,
    "stop": anything,
    "temperature": number,
    "frequency_penalty": number,
    "presence_penalty": number,
    "top_p": number,
    "response_format": struct(_FORMAT, "openai.ResponseFormat"),
    "tools": list_of(mapping, "[]api.Tool", null={}),
    "tool_choice": anything,
    "reasoning": struct({"effort": string}, "openai.Reasoning"),
    "reasoning_effort": string,
    "logprobs": boolean,
    "top_logprobs": integer,
    "_debug_render_only": boolean,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody:
    """Messages, formats and tools are still JSON; `convert` gives them meaning.

    max_completion_tokens, tool_choice: Ollama ignores both, so no value of theirs is an error.
    """

    model: str = ""
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    stream: bool = False
    stream_options: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    max_completion_tokens: object = None
    seed: int | None = None
    stop: object = None
    temperature: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_p: float | None = None
    response_format: Mapping[str, Any] = field(default_factory=dict)
    tools: list[Mapping[str, object]] = field(default_factory=list)
    tool_choice: object = None
    reasoning: Mapping[str, Any] | None = None
    reasoning_effort: str = ""
    logprobs: bool = False
    top_logprobs: int = 0
    debug_render_only: bool = False

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options.get("include_usage"))

    @property
    def limit(self) -> int | None:
        """Tokens; newer clients send `max_completion_tokens` alone."""
        newer = self.max_completion_tokens
        if self.max_tokens is None and type(newer) is int and 0 < newer < 2**63:
            return newer
        return self.max_tokens


async def read_chat(request: web.Request) -> ChatBody:
    fields = await read_fields(request, "openai.ChatCompletionRequest", CHAT)
    return ChatBody(**{key.removeprefix("_"): value for key, value in fields.items()})
