"""Converts OpenAI's chat body to the types of `core`, by Ollama's compatibility rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specd import core
from specd.api.body import go_any_type
from specd.api.openai import media_parts, shared_fields
from specd.api.openai.schema import ChatBody
from specd.errors import InvalidRequest


def chat_request(
    body: ChatBody, ref: core.ModelRef, prompt: core.ChatPrompt, think: bool | str | None
) -> core.GenerateRequest:
    """Raises InvalidRequest for a format that is none."""
    sent = body.response_format
    schema = sent.get("json_schema", {}).get("schema")
    return core.GenerateRequest(
        model=ref.name,
        prompt=prompt,
        options=options(body),
        think=think,
        grammar=shared_fields.grammar(sent.get("type", ""), schema),
        n_logprobs=body.top_logprobs if body.logprobs else None,
    )


def options(body: ChatBody) -> dict[str, object]:
    """Temperature and top_p are 1 where they were not sent, whatever the Modelfile says."""
    sent = {
        "num_predict": body.limit,
        "seed": body.seed,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "stop": _stops(body.stop),
    }
    return {
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
    } | {key: value for key, value in sent.items() if value is not None}


def _stops(stop: object) -> list[str] | None:
    """Elements that are no strings are skipped, as Ollama skips them."""
    if isinstance(stop, str):
        return [stop]
    if isinstance(stop, list):
        return [entry for entry in stop if isinstance(entry, str)]
    return None


def effort(body: ChatBody) -> str:
    """Empty where none was sent."""
    return body.reasoning_effort if body.reasoning is None else body.reasoning.get("effort", "")


# --------------------------------------------------------------------------- messages


def to_messages(sent: Sequence[Mapping[str, Any]]) -> tuple[core.Message, ...]:
    """Each content part becomes a message of its own, of the same role.

    Raises InvalidRequest with Ollama's texts.
    """
    names = _tool_names(sent)
    return tuple(message for raw in sent for message in _parse_message(raw, names))


def _tool_names(sent: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Function names by the id of their call, for the tools' answers."""
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
    """The field of a message that one content part fills."""
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
    return media_parts.image(url)


def _sound(sent: object) -> bytes:
    data = sent.get("data") if isinstance(sent, dict) else None
    if not isinstance(data, str):
        raise InvalidRequest("invalid input_audio")
    return media_parts.sound(data)
