"""Conversions of fields that several of OpenAI's bodies share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from specd import core
from specd.api.body import decode_base64
from specd.api.go_format import go_quote
from specd.api.go_json_decoder import decode_whole
from specd.errors import InvalidRequest
from specd.go_json_encoder import dump_json

_DATA_URLS: Final = tuple(
    f"data:{kind};base64," for kind in ("image/jpeg", "image/jpg", "image/png", "image/webp", "")
)
_EFFORTS: Final[Mapping[str, bool | str]] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "max": "max",
    "xhigh": "max",
    "ultra": "max",
}


def think(effort: str) -> bool | str | None:
    """Return `think` for a reasoning effort; "" is the model's default.  Raises InvalidRequest."""
    if not effort:
        return None
    if effort not in _EFFORTS:
        raise InvalidRequest(
            f"invalid reasoning value: {go_quote(effort)}"
            ' (must be "high", "medium", "low", "max", or "none")'
        )
    return _EFFORTS[effort]


def grammar(kind: str, schema: object) -> core.Grammar | None:
    """Return the grammar of a format; None allows any text.

    kind: `json_object` or `json_schema`; others mean any text.  Raises InvalidRequest.
    """
    kind = kind.strip().lower()
    if kind == "json_object" or (kind == "json_schema" and schema == "json"):
        return core.Grammar(kind=core.GrammarKind.JSON)
    if kind != "json_schema" or schema in (None, ""):
        return None
    if not isinstance(schema, dict):
        shown = go_quote(dump_json(schema).decode())
        raise InvalidRequest(
            f'invalid format: {shown}; expected "json" or a valid JSON Schema object'
        )
    text = json.dumps(schema, ensure_ascii=False)
    return core.Grammar(kind=core.GrammarKind.JSON_SCHEMA, text=text)


def arguments(text: str) -> dict[str, object]:
    """Return a tool call's arguments; an empty text and `null` are {}.  Raises ValueError."""
    try:
        value = decode_whole(text) if text.strip() else None
    except InvalidRequest as error:
        raise ValueError(str(error)) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - callers catch one type
    return value


def tools(sent: Sequence[Mapping[str, object]], choice: object) -> tuple[Mapping[str, object], ...]:
    """Return the tools for the model: none if `tool_choice` is "none", which Ollama ignores."""
    return () if choice == "none" else tuple(sent)


def role(sent: str) -> str:
    """Return the role in lower case; `developer` becomes `system`, as in llama-server."""
    lowered = sent.lower()
    return "system" if lowered == "developer" else lowered


def image(url: str) -> bytes:
    """Return the bytes of an image's data URL; nothing is downloaded.  Raises InvalidRequest."""
    if url.startswith(("http://", "https://")):
        raise InvalidRequest(
            "image URLs are not currently supported, please use base64 encoded data instead"
        )
    prefix = next((prefix for prefix in _DATA_URLS if url.startswith(prefix)), None)
    if prefix is None:
        raise InvalidRequest("invalid image input")
    return _decode_file(url.removeprefix(prefix), "invalid image input")


def sound(data: str) -> bytes:
    """Return the bytes of a sound in base64.  Raises InvalidRequest."""
    return _decode_file(data, "invalid input_audio")


def _decode_file(text: str, error_text: str) -> bytes:
    try:
        return decode_base64(text)
    except InvalidRequest as error:
        raise InvalidRequest(error_text) from error
