"""The fields that `/api/*` reads from a body, with Go's types and Ollama's error texts.

Every field here is honoured or refused; fields not named here are ignored, as Ollama ignores them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from specd.api import base64_data
from specd.api.body import (
    Codec,
    Fields,
    anything,
    boolean,
    decode_struct,
    go_any_type,
    integer,
    list_of,
    mapping,
    read_fields,
    string,
    struct,
)
from specd.api.go_format import MAX_DURATION_S, go_quote
from specd.core import Message, ToolCall
from specd.durations import parse_go_duration
from specd.errors import InvalidRequest

_EFFORTS: Final = ("high", "medium", "low", "max")
_EFFORT_WORDS: Final = '"high", "medium", "low", "max", true, or false'


class InvalidFormat(InvalidRequest):
    """`format` is neither "json" nor a schema; Ollama answers it 500."""


# --------------------------------------------------------------------------- codecs


def keep_alive(value: object) -> float:
    """Return seconds, inf for forever.  A number is seconds, a string is a Go duration."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidRequest(f"Unsupported type: '{go_any_type(value)}'")
    try:
        seconds = parse_go_duration(value) if isinstance(value, str) else float(value)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    # A negative duration, or one longer than Go's maximum, is forever.
    return seconds if 0 <= seconds < MAX_DURATION_S else math.inf


def think(value: object) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise InvalidRequest(f"think must be a boolean or string ({_EFFORT_WORDS})")
    if value not in _EFFORTS:
        raise InvalidRequest(f"invalid think value: {go_quote(value)} (must be {_EFFORT_WORDS})")
    return value


def _image(value: object) -> bytes:
    return base64_data.decode(string(value))


_images: Final[Codec] = list_of(_image, "[]api.ImageData", null=b"")
_TOOL_CALL: Final[Fields] = {
    "id": string,
    "function": struct(
        {"index": integer, "name": string, "arguments": mapping}, "api.ToolCallFunction"
    ),
}
_MESSAGE: Final[Fields] = {
    "role": string,
    "content": string,
    "thinking": string,
    "images": _images,
    "tool_calls": list_of(struct(_TOOL_CALL, "api.ToolCall"), "[]api.ToolCall", null={}),
    "tool_name": string,
    "tool_call_id": string,
}


def message(value: object) -> Message:
    # Ollama decodes a message through a local type of this name.
    fields = decode_struct(value, _MESSAGE, "api.Alias")
    fields["images"] = tuple(fields.get("images", ()))
    fields["tool_calls"] = tuple(_tool_call(call) for call in fields.get("tool_calls", ()))
    return Message(**fields | {"role": fields.get("role", "").lower()})


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function", {})
    return ToolCall(
        name=function.get("name", ""),
        arguments=function.get("arguments", {}),
        id=call.get("id", ""),
        index=function.get("index", 0),
    )


_SHARED: Final[Fields] = {
    "model": string,
    "stream": boolean,
    "format": anything,
    "keep_alive": keep_alive,
    "options": mapping,
    "think": think,
    "truncate": boolean,
    "shift": boolean,
    "_debug_render_only": boolean,
    "logprobs": boolean,
    "top_logprobs": integer,
}
_GENERATE: Final[Fields] = _SHARED | {
    "prompt": string,
    "suffix": string,
    "system": string,
    "template": string,
    "context": list_of(integer, "[]int", null=0),
    "raw": boolean,
    "images": _images,
}
_CHAT: Final[Fields] = _SHARED | {
    "messages": list_of(message, "[]api.Message", null=Message(role="")),
    "tools": list_of(mapping, "api.Tools", null={}),
}
_SHOW: Final[Fields] = {"model": string, "name": string, "system": string, "verbose": boolean}


# --------------------------------------------------------------------------- bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceBody:
    """What generate and chat share.  keep_alive: seconds; None where it was not sent.

    format: JSON as it was sent.
    """

    model: str = ""
    stream: bool = True
    format: object = None
    keep_alive: float | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    think: bool | str | None = None
    truncate: bool = True
    shift: bool | None = None
    debug_render_only: bool = False
    logprobs: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateBody(InferenceBody):
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: list[int] = field(default_factory=list)
    raw: bool = False
    images: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody(InferenceBody):
    messages: list[Message] = field(default_factory=list)
    tools: list[Mapping[str, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowBody:
    """`name` is the older spelling of `model`, which the `ollama` command still sends."""

    model: str = ""
    name: str = ""
    system: str = ""
    verbose: bool = False


async def read_generate(request: web.Request) -> GenerateBody:
    return GenerateBody(**_renamed(await read_fields(request, "api.GenerateRequest", _GENERATE)))


async def read_chat(request: web.Request) -> ChatBody:
    return ChatBody(**_renamed(await read_fields(request, "api.ChatRequest", _CHAT)))


async def read_show(request: web.Request) -> ShowBody:
    return ShowBody(**await read_fields(request, "api.ShowRequest", _SHOW))


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("_"): value for key, value in fields.items()}
