"""The items of `input` in `/v1/responses`, checked with Ollama's error texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from specd.api.body import Fields, anything, decode, json_type, list_of, string, struct
from specd.api.go_format import go_quote
from specd.api.openai import media_parts
from specd.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Content:
    """text: of all text parts, one after the other."""

    text: str = ""
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageItem:
    role: str
    content: Content


@dataclass(frozen=True, slots=True)
class CallItem:
    """arguments: JSON in a string, not yet read."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class OutputItem:
    """What came of a call."""

    call_id: str
    content: Content


@dataclass(frozen=True, slots=True)
class ReasoningItem:
    text: str


Item = MessageItem | CallItem | OutputItem | ReasoningItem


def read_input(value: object) -> tuple[Item, ...]:
    """A string is one user's message; of a list, what the model need not see is left out.

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
    if kind not in _READERS:
        raise InvalidRequest(f"unknown input item type: {go_quote(kind)}")
    return _READERS[kind](value)


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
    """What was thought comes back as it went out; a summary is the next best."""
    sent = decode(value, _REASONING, "openai.ResponsesReasoningInput")
    summary = "\n\n".join(part.get("text", "") for part in sent.get("summary", ()))
    return ReasoningItem(sent.get("encrypted_content", "") or summary)


def _web_search(_: object) -> None:
    """The message that follows it says what was found."""


_READERS: Final[Mapping[str, Callable[[object], Item | None]]] = {
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


_PART: Final[Fields] = {"type": string, "text": string, "image_url": string}


def _part(value: object) -> str | bytes:
    sent = decode(value, _PART, "openai.ResponsesContent")
    match sent.get("type", ""):
        case "input_text" | "output_text":
            return str(sent.get("text", ""))
        case "input_image":
            # An image of the files' API, which is not here, has no address.
            return media_parts.image(sent["image_url"]) if sent.get("image_url") else ""
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
