"""The fields that `/v1/messages` reads from a body: those of Ollama's compatibility layer.

What it ignores (`metadata`, `cache_control`, `budget_tokens`, ...) is ignored here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from specd.api.body import (
    Fields,
    Mismatch,
    anything,
    boolean,
    integer,
    json_type,
    list_of,
    mapping,
    number,
    read_fields,
    string,
    struct,
)

Block = Mapping[str, Any]

_BLOCK: Final[Fields] = {
    "type": string,
    "text": string,
    "thinking": string,
    "source": anything,  # kinds that nobody reads have sources of their own
    "id": string,
    "name": string,
    "input": mapping,
    "tool_use_id": string,
    "content": anything,
}
_blocks: Final = list_of(
    struct(_BLOCK, "anthropic.ContentBlock"), "[]anthropic.ContentBlock", null={}
)


def blocks(value: object) -> object:
    """Content as blocks; a string is one of text."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else _blocks(value)


def system(value: object) -> object:
    if not isinstance(value, str | list):
        raise Mismatch(json_type(value), "[]anthropic.ContentBlock")
    return blocks(value)


_MESSAGE: Final[Fields] = {"role": string, "content": blocks}
_TOOL: Final[Fields] = {
    "type": string,
    "name": string,
    "description": string,
    "input_schema": mapping,
}
_COUNT: Final[Fields] = {
    "model": string,
    "messages": list_of(
        struct(_MESSAGE, "anthropic.MessageParam"), "[]anthropic.MessageParam", null={}
    ),
    "system": system,
    "tools": list_of(struct(_TOOL, "anthropic.Tool"), "[]anthropic.Tool", null={}),
    "tool_choice": struct({"type": string}, "anthropic.ToolChoice"),
    "thinking": struct({"type": string}, "anthropic.ThinkingConfig"),
    "output_config": struct({"effort": string}, "anthropic.OutputConfig"),
}
_MESSAGES: Final[Fields] = _COUNT | {
    "max_tokens": integer,
    "stream": boolean,
    "temperature": number,
    "top_p": number,
    "top_k": integer,
    "stop_sequences": list_of(string, "[]string", null=""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBody:
    """Messages and tools are still JSON, their content blocks; `convert` gives them meaning."""

    model: str = ""
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    system: list[Block] = field(default_factory=list)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    tool_choice: Mapping[str, Any] = field(default_factory=dict)
    thinking: Mapping[str, Any] = field(default_factory=dict)
    output_config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesBody(CountBody):
    max_tokens: int = 0
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] = field(default_factory=list)


async def read_messages(request: web.Request) -> MessagesBody:
    return MessagesBody(**await read_fields(request, "anthropic.MessagesRequest", _MESSAGES))


async def read_count(request: web.Request) -> CountBody:
    return CountBody(**await read_fields(request, "anthropic.CountTokensRequest", _COUNT))
