"""What `/v1/responses` reads from a body: what Ollama reads, and what says that a memory is meant.

`store`, `include`, `metadata`, `parallel_tool_calls` and all others are ignored.
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
    decode_struct,
    integer,
    list_of,
    mapping,
    number,
    read_fields,
    string,
    struct,
)
from specd.api.openai.responses.items import Item, read_input


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """sent: as it came, to be shown again.  tools: the members of a namespace."""

    type: str = ""
    name: str = ""
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    tools: tuple[Tool, ...] = ()
    sent: Mapping[str, object] = field(default_factory=dict)


def _tool(value: object) -> Tool:
    fields = _fields(value, _TOOL)
    members = tuple(fields.pop("tools", ()))
    return Tool(**fields, tools=members, sent=mapping(value))


def _member(value: object) -> Tool:
    """Of a namespace; one does not hold another."""
    return Tool(**_fields(value, _MEMBER))


def _fields(value: object, known: Fields) -> dict[str, Any]:
    """`strict` must be of its type, and binds nobody: calls are held to no schema here."""
    fields = decode_struct(value, known, "openai.ResponsesTool")
    fields.pop("strict", None)
    return fields


_MEMBER: Final[Fields] = {
    "type": string,
    "name": string,
    "description": string,
    "strict": boolean,
    "parameters": mapping,
}
_members: Final = list_of(_member, "[]openai.ResponsesTool", null=Tool())
_TOOL: Final[Fields] = _MEMBER | {"tools": _members}
_tools: Final = list_of(_tool, "[]openai.ResponsesTool", null=Tool())
_FORMAT: Final[Fields] = {"type": string, "name": string, "schema": anything, "strict": boolean}
RESPONSES: Final[Fields] = {
    "model": string,
    "background": boolean,
    "input": read_input,
    "instructions": string,
    "max_output_tokens": integer,
    "reasoning": struct({"effort": string, "summary": string}, "openai.ResponsesReasoning"),
    "temperature": number,
    "text": struct({"format": struct(_FORMAT, "openai.ResponsesTextFormat")}, "openai.Text"),
    "top_p": number,
    "truncation": string,
    "tools": _tools,
    "tool_choice": anything,
    "stream": boolean,
    "previous_response_id": anything,
    "conversation": anything,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesBody:
    """previous_response_id, conversation, tool_choice: no value of theirs is of a wrong type."""

    model: str = ""
    background: bool = False
    input: tuple[Item, ...] = ()
    instructions: str = ""
    max_output_tokens: int | None = None
    reasoning: Mapping[str, str] = field(default_factory=dict)
    temperature: float | None = None
    text: Mapping[str, Any] = field(default_factory=dict)
    top_p: float | None = None
    truncation: str = "disabled"
    tools: list[Tool] = field(default_factory=list)
    tool_choice: object = None
    stream: bool = False
    previous_response_id: object = None
    conversation: object = None

    @property
    def format(self) -> Mapping[str, Any]:
        """Empty where none was sent."""
        found: Mapping[str, Any] = self.text.get("format", {})
        return found


async def read_responses(request: web.Request) -> ResponsesBody:
    return ResponsesBody(**await read_fields(request, "openai.ResponsesRequest", RESPONSES))
