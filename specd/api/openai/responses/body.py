"""The body of `/v1/responses` and the items of its input, with Ollama's error texts.

The fields `store`, `include`, `metadata`, `parallel_tool_calls` and all others are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from specd.api.body import (
    Body,
    Fields,
    anything,
    boolean,
    decode,
    decode_struct,
    json_type,
    list_of,
    mapping,
    string,
    struct,
)
from specd.api.go_format import go_quote
from specd.api.openai import shared_fields
from specd.errors import InvalidRequest

T = TypeVar("T")


# --------------------------------------------------------------------------- items of the input


@dataclass(frozen=True, slots=True)
class Content:
    """The content of an item.  text: all text parts, joined."""

    text: str = ""
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageItem:
    role: str
    content: Content


@dataclass(frozen=True, slots=True)
class CallItem:
    """A call of a function.  arguments: JSON in a string, not yet parsed."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class OutputItem:
    """The result of a call."""

    call_id: str
    content: Content


@dataclass(frozen=True, slots=True)
class ReasoningItem:
    text: str


Item = MessageItem | CallItem | OutputItem | ReasoningItem


def read_input(value: object) -> tuple[Item, ...]:
    """Return the items without those that the model does not need; a string is a user message.

    Raises InvalidRequest.
    """
    if isinstance(value, str):
        return (MessageItem("user", Content(value)),) if value else ()
    items = _each("input", _list("input", value), _item)
    return tuple(item for item in items if item is not None)


_HEAD: Final[Fields] = {"type": string, "role": string}
_MESSAGE: Final[Fields] = {"role": string, "content": anything}
_CALL: Final[Fields] = {"call_id": string, "name": string, "arguments": string}
_OUTPUT: Final[Fields] = {"call_id": string, "output": anything}
_TEXTS: Final = list_of(struct({"text": string}, "openai.ResponsesReasoningSummary"), "[]", null={})
_REASONING: Final[Fields] = {"summary": _TEXTS, "encrypted_content": string}


def _item(value: object) -> Item | None:
    head = decode(value, _HEAD, "openai.ResponsesInputItem")
    kind = head.get("type") or ("message" if head.get("role") else "")
    if not kind:
        raise InvalidRequest("input item missing required 'type' field")
    if kind not in ITEM_READERS:
        raise InvalidRequest(f"unknown input item type: {go_quote(kind)}")
    return ITEM_READERS[kind](value)


def _message(value: object) -> Item:
    sent = decode(value, _MESSAGE, "openai.ResponsesInputMessage")
    return MessageItem(sent.get("role", ""), _content("content", sent.get("content")))


def _call(value: object) -> Item:
    sent = decode(value, _CALL, "openai.ResponsesFunctionCall")
    return CallItem(sent.get("call_id", ""), sent.get("name", ""), sent.get("arguments", ""))


def _output(value: object) -> Item:
    sent = decode(value, _OUTPUT, "openai.ResponsesFunctionCallOutput")
    return OutputItem(sent.get("call_id", ""), _content("output", sent.get("output")))


def _reasoning(value: object) -> Item:
    """Return the thinking of an earlier answer, or else its summary."""
    sent = decode(value, _REASONING, "openai.ResponsesReasoningInput")
    summary = "\n\n".join(part.get("text", "") for part in sent.get("summary", ()))
    return ReasoningItem(sent.get("encrypted_content", "") or summary)


def _web_search(_: object) -> None:
    """Return None: the next message has the results of the search."""


ITEM_READERS: Final[Mapping[str, Callable[[object], Item | None]]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "reasoning": _reasoning,
    "web_search_call": _web_search,
}


# --------------------------------------------------------------------------- content


def _content(name: str, value: object) -> Content:
    if value is None:
        return Content()
    if isinstance(value, str):
        return Content(value)
    read = _each(name, _list(name, value), _part)
    return Content(
        text="".join(part for part in read if isinstance(part, str)),
        images=tuple(part for part in read if isinstance(part, bytes)),
    )


CONTENT_PART: Final[Fields] = {"type": string, "text": string, "image_url": string}


def _part(value: object) -> str | bytes:
    sent = decode(value, CONTENT_PART, "openai.ResponsesContent")
    match sent.get("type", ""):
        case "input_text" | "output_text":
            return str(sent.get("text", ""))
        case "input_image":
            # An image of the files API, which specd does not have, has no URL.
            return shared_fields.image(sent["image_url"]) if sent.get("image_url") else ""
        case "input_file":
            raise InvalidRequest("file inputs are not currently supported")
        case kind:
            raise InvalidRequest(f"unknown content type: {kind}")


def _list(name: str, value: object) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(
            f"{name} must be a string or array: json: cannot unmarshal {json_type(value)}"
            " into Go value of type []json.RawMessage"
        )
    return value


def _each(name: str, values: Sequence[object], read: Callable[[object], T]) -> list[T]:
    """Read each value.  Raises InvalidRequest that names the index of the value."""
    done: list[T] = []
    for index, value in enumerate(values):
        try:
            done.append(read(value))
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}[{index}]: {error}") from error
    return done


# --------------------------------------------------------------------------- tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool.  sent: its JSON, which the answer repeats.  tools: the members of a namespace."""

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
    """Return a member of a namespace; namespaces are not nested."""
    return Tool(**_fields(value, _MEMBER))


def _fields(value: object, known: Fields) -> dict[str, Any]:
    """Return the fields without `strict`, which is checked for its type and has no effect."""
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
_text: Final = struct({"format": struct(_FORMAT, "openai.ResponsesTextFormat")}, "openai.Text")
_reasoning_field: Final = struct({"effort": string, "summary": string}, "openai.ResponsesReasoning")


# --------------------------------------------------------------------------- the body


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesBody(Body):
    """previous_response_id, conversation, tool_choice: values of any type are accepted."""

    go_name = "openai.ResponsesRequest"

    model: str = ""
    background: bool = False
    input: Annotated[tuple[Item, ...], read_input] = ()
    instructions: str = ""
    max_output_tokens: int | None = None
    reasoning: Annotated[Mapping[str, str], _reasoning_field] = field(default_factory=dict)
    temperature: float | None = None
    text: Annotated[Mapping[str, Any], _text] = field(default_factory=dict)
    top_p: float | None = None
    truncation: str = "disabled"
    tools: Annotated[list[Tool], _tools] = field(default_factory=list)
    tool_choice: object = None
    stream: bool = False
    previous_response_id: object = None
    conversation: object = None

    @property
    def format(self) -> Mapping[str, Any]:
        """The format of the answer; empty if none was sent."""
        found: Mapping[str, Any] = self.text.get("format", {})
        return found
