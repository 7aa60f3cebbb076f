"""The body of `/v1/chat/completions` and its conversion, by the rules of Ollama's layer.

The fields that Ollama ignores (`n`, `logit_bias`, `user`, ...) are ignored here too, except for
`max_completion_tokens` and `tool_choice`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from specd import core, options
from specd.api.body import (
    Body,
    Fields,
    anything,
    boolean,
    go_any_type,
    integer,
    list_of,
    mapping,
    string,
    struct,
)
from specd.api.openai import shared_fields
from specd.errors import InvalidRequest

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
_messages: Final = list_of(struct(_MESSAGE, "openai.Message"), "[]openai.Message", null={})
_format: Final = struct(_FORMAT, "openai.ResponseFormat")
_reasoning: Final = struct({"effort": string}, "openai.Reasoning")
_tools: Final = list_of(mapping, "[]api.Tool", null={})
stream_options: Final = struct({"include_usage": boolean}, "openai.StreamOptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody(Body):
    """Messages, formats and tools are JSON; the functions below convert them.

    max_completion_tokens, tool_choice: Ollama ignores both, so any value is accepted.
    """

    go_name = "openai.ChatCompletionRequest"

    model: str = ""
    messages: Annotated[list[Mapping[str, Any]], _messages] = field(default_factory=list)
    stream: bool = False
    stream_options: Annotated[Mapping[str, Any], stream_options] = field(default_factory=dict)
    max_tokens: int | None = None
    max_completion_tokens: object = None
    seed: int | None = None
    stop: object = None
    temperature: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_p: float | None = None
    response_format: Annotated[Mapping[str, Any], _format] = field(default_factory=dict)
    tools: Annotated[list[Mapping[str, object]], _tools] = field(default_factory=list)
    tool_choice: object = None
    reasoning: Annotated[Mapping[str, Any] | None, _reasoning] = None
    reasoning_effort: str = ""
    logprobs: bool = False
    top_logprobs: int = 0
    debug_render_only: bool = field(default=False, metadata={"json": "_debug_render_only"})

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options.get("include_usage"))

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer; newer clients send only `max_completion_tokens`."""
        newer = self.max_completion_tokens
        if self.max_tokens is None and type(newer) is int and 0 < newer < 2**63:
            return newer
        return self.max_tokens

    @property
    def effort(self) -> str:
        """The reasoning effort; "" if none was sent."""
        return self.reasoning_effort if self.reasoning is None else self.reasoning.get("effort", "")


def chat_request(
    body: ChatBody, ref: core.ModelRef, prompt: core.ChatPrompt, think: bool | str | None
) -> core.GenerateRequest:
    """Return the request.  Raises InvalidRequest for an invalid format."""
    sent = body.response_format
    schema = sent.get("json_schema", {}).get("schema")
    return core.GenerateRequest(
        model=ref,
        prompt=prompt,
        options=_options(body),
        think=think,
        grammar=shared_fields.grammar(sent.get("type", ""), schema),
        n_logprobs=body.top_logprobs if body.logprobs else None,
    )


def _options(body: ChatBody) -> core.OptionValues:
    """Return the options; temperature and top_p are 1 by default, even against the Modelfile."""
    return options.parse(
        {
            "num_predict": body.limit,
            "seed": body.seed,
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
            "stop": _stops(body.stop),
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "top_p": 1.0 if body.top_p is None else body.top_p,
        }
    )


def _stops(stop: object) -> list[str] | None:
    """Return the stop texts; skip elements that are not strings, as in Ollama."""
    if isinstance(stop, str):
        return [stop]
    if isinstance(stop, list):
        return [entry for entry in stop if isinstance(entry, str)]
    return None


# --------------------------------------------------------------------------- messages


def to_messages(sent: Sequence[Mapping[str, Any]]) -> tuple[core.Message, ...]:
    """Convert messages; each content part becomes a message with the same role.

    Raises InvalidRequest with Ollama's texts.
    """
    names = _tool_names(sent)
    return tuple(message for raw in sent for message in _parse_message(raw, names))


def _tool_names(sent: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return call id → function name, for the results of tools."""
    return {
        call.get("id", ""): call.get("function", {}).get("name", "")
        for raw in sent
        for call in raw.get("tool_calls", ())
    }


def _parse_message(raw: Mapping[str, Any], tool_names: Mapping[str, str]) -> Iterator[core.Message]:
    role = shared_fields.role(raw.get("role", ""))
    call_id = raw.get("tool_call_id", "")
    content = raw.get("content")
    rest: dict[str, Any] = {
        "role": role,
        "thinking": raw.get("reasoning", ""),
        "tool_calls": tuple(_tool_call(call) for call in raw.get("tool_calls", ())),
        "tool_name": raw.get("name", "") or tool_names.get(call_id, ""),
        "tool_call_id": call_id,
    }
    if isinstance(content, str):
        yield core.Message(content=content, **rest)
    elif isinstance(content, list):
        *before, last = [_part(part) for part in content] or [{}]
        for part in before:
            yield core.Message(role=role, **part)
        yield core.Message(**rest, **last)
    elif content is None and rest["tool_calls"]:
        yield core.Message(**rest)
    else:
        raise InvalidRequest(f"invalid message content type: {go_any_type(content)}")


def _tool_call(call: Mapping[str, Any]) -> core.ToolCall:
    function = call.get("function", {})
    try:
        arguments = shared_fields.arguments(function.get("arguments", ""))
    except ValueError as error:
        raise InvalidRequest("invalid tool call arguments") from error
    return core.ToolCall(
        name=function.get("name", ""),
        arguments=arguments,
        id=call.get("id", ""),
        index=call.get("index", 0),
    )


def _part(part: object) -> dict[str, Any]:
    """Return the field of a message that a content part sets."""
    if not isinstance(part, dict):
        raise InvalidRequest("invalid message format")
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return {"content": part["text"]}
    if kind == "image_url":
        return {"images": (_image(part.get("image_url")),)}
    if kind == "input_audio":
        return {"images": (_sound(part.get("input_audio")),)}
    raise InvalidRequest("invalid message format")


def _image(sent: object) -> bytes:
    url = sent.get("url") if isinstance(sent, dict) else sent
    if not isinstance(url, str):
        raise InvalidRequest("invalid image input")
    return shared_fields.image(url)


def _sound(sent: object) -> bytes:
    data = sent.get("data") if isinstance(sent, dict) else None
    if not isinstance(data, str):
        raise InvalidRequest("invalid input_audio")
    return shared_fields.sound(data)
