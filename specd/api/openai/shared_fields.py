"""What several of OpenAI's bodies say in the same words: effort, format, stop strings, limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from specd import core
from specd.api.go_format import dump_json, go_quote
from specd.api.go_json_decoder import decode_whole
from specd.errors import InvalidRequest

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
    """`think` for a reasoning effort; "" is the model's default."""
    if not effort:
        return None
    if effort not in _EFFORTS:
        raise InvalidRequest(
            f"invalid reasoning value: {go_quote(effort)}"
            ' (must be "high", "medium", "low", "max", or "none")'
        )
    return _EFFORTS[effort]


def grammar(kind: str, schema: object) -> core.Grammar | None:
    """For a format of that type: `text`, `json_object` or `json_schema`; others are free text."""
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
    """A tool call's arguments; nothing and `null` are none.  Raises ValueError."""
    try:
        value = decode_whole(text) if text.strip() else None
    except InvalidRequest as error:
        raise ValueError(str(error)) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - as what json raises
    return value


def tools(sent: Sequence[Mapping[str, object]], choice: object) -> tuple[Mapping[str, object], ...]:
    """What the model is offered.  Of `tool_choice` only "none" is honoured, unlike in Ollama."""
    return () if choice == "none" else tuple(sent)


def role(sent: str) -> str:
    """Templates know no `developer`; llama-server, below Ollama, makes it `system` as well."""
    lowered = sent.lower()
    return "system" if lowered == "developer" else lowered
