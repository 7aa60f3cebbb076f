"""The bodies of `/v1/messages`, with the fields of Ollama's compatibility layer.

The fields that it ignores (`metadata`, `cache_control`, `budget_tokens`, ...) are ignored here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from specd.api.body import (
    Body,
    Fields,
    Mismatch,
    anything,
    json_type,
    list_of,
    mapping,
    string,
    struct,
)

Block = Mapping[str, Any]

_BLOCK: Final[Fields] = {
    "type": string,
    "text": string,
    "thinking": string,
    "source": anything,  # unread kinds of blocks have other sources
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
    """Return content as blocks; a string becomes one text block."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else _blocks(value)


def system(value: object) -> object:
    if not isinstance(value, str | list):
        raise Mismatch(json_type(value), "[]anthropic.ContentBlock")
    return blocks(value)


_MESSAGE: Final[Fields] = {"role": string, "content": blocks}
_messages: Final = list_of(
    struct(_MESSAGE, "anthropic.MessageParam"), "[]anthropic.MessageParam", null={}
)
_TOOL: Final[Fields] = {
    "type": string,
    "name": string,
    "description": string,
    "input_schema": mapping,
}
_tools: Final = list_of(struct(_TOOL, "anthropic.Tool"), "[]anthropic.Tool", null={})
_tool_choice: Final = struct({"type": string}, "anthropic.ToolChoice")
_thinking: Final = struct({"type": string}, "anthropic.ThinkingConfig")
_output_config: Final = struct({"effort": string}, "anthropic.OutputConfig")
_stops: Final = list_of(string, "[]string", null="")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBody(Body):
    """The body of `/v1/messages/count_tokens`.

    Messages and tools are JSON, and messages have blocks as content; `convert` converts them.
    """

    go_name = "anthropic.CountTokensRequest"

    model: str = ""
    messages: Annotated[list[Mapping[str, Any]], _messages] = field(default_factory=list)
    system: Annotated[list[Block], system] = field(default_factory=list)
    tools: Annotated[list[Mapping[str, Any]], _tools] = field(default_factory=list)
    tool_choice: Annotated[Mapping[str, Any], _tool_choice] = field(default_factory=dict)
    thinking: Annotated[Mapping[str, Any], _thinking] = field(default_factory=dict)
    output_config: Annotated[Mapping[str, Any], _output_config] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesBody(CountBody):
    """The body of `/v1/messages`."""

    go_name = "anthropic.MessagesRequest"

    max_tokens: int = 0
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Annotated[list[str], _stops] = field(default_factory=list)
