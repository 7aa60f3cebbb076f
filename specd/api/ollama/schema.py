"""The bodies of `/api/*`, with Go's types and Ollama's error texts.

Every field here has an effect or an error; other fields are ignored, as in Ollama.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from specd.api.body import (
    Body,
    Fields,
    decode_base64,
    decode_struct,
    go_any_type,
    integer,
    list_of,
    mapping,
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


def parse_keep_alive(value: object) -> float:
    """Return seconds, inf for forever.  A number is seconds, a string is a Go duration."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidRequest(f"Unsupported type: '{go_any_type(value)}'")
    try:
        seconds = parse_go_duration(value) if isinstance(value, str) else float(value)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    # A negative duration, or one longer than Go's maximum, is forever.
    return seconds if 0 <= seconds < MAX_DURATION_S else math.inf


def parse_think(value: object) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise InvalidRequest(f"think must be a boolean or string ({_EFFORT_WORDS})")
    if value not in _EFFORTS:
        raise InvalidRequest(f"invalid think value: {go_quote(value)} (must be {_EFFORT_WORDS})")
    return value


def _image(value: object) -> bytes:
    return decode_base64(string(value))


_images: Final = list_of(_image, "[]api.ImageData", null=b"")
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


def _message(value: object) -> Message:
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


parse_messages: Final = list_of(_message, "[]api.Message", null=Message(role=""))


# --------------------------------------------------------------------------- bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceBody(Body):
    """The fields that generate and chat share.

    format: any JSON.  keep_alive: seconds; None if it was not sent.
    """

    model: str = ""
    stream: bool = True
    format: object = None
    keep_alive: Annotated[float | None, parse_keep_alive] = None
    options: Mapping[str, object] = field(default_factory=dict)
    think: Annotated[bool | str | None, parse_think] = None
    truncate: bool = True
    shift: bool | None = None
    debug_render_only: bool = field(default=False, metadata={"json": "_debug_render_only"})
    logprobs: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateBody(InferenceBody):
    go_name = "api.GenerateRequest"

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: Annotated[list[int], list_of(integer, "[]int", null=0)] = field(default_factory=list)
    raw: bool = False
    images: Annotated[list[bytes], _images] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody(InferenceBody):
    go_name = "api.ChatRequest"

    messages: Annotated[list[Message], parse_messages] = field(default_factory=list)
    tools: Annotated[list[Mapping[str, object]], list_of(mapping, "api.Tools", null={})] = field(
        default_factory=list
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBody(Body):
    """A body that names a model; the `ollama` command still sends `name`, the older field."""

    model: str = ""
    name: str = ""

    @property
    def model_name(self) -> str:
        return self.model or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowBody(NamedBody):
    go_name = "api.ShowRequest"

    system: str = ""
    verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBody(Body):
    """The fields that both embedding routes share.  keep_alive: as in InferenceBody."""

    model: str = ""
    keep_alive: Annotated[float | None, parse_keep_alive] = None
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedBody(EmbeddingBody):
    go_name = "api.EmbedRequest"

    input: object = None
    truncate: bool = True
    dimensions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsBody(EmbeddingBody):
    go_name = "api.EmbeddingRequest"

    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBody(NamedBody):
    """The body of a pull or a push."""

    insecure: bool = False
    stream: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PullBody(TransferBody):
    go_name = "api.PullRequest"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushBody(TransferBody):
    go_name = "api.PushRequest"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBody(Body):
    go_name = "api.CopyRequest"

    source: str = ""
    destination: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteBody(NamedBody):
    go_name = "api.DeleteRequest"
