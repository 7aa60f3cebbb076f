"""Conversion of JSON from a model into calls, in all forms that models write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NoReturn

from specd.core import ToolCall
from specd.go_json_encoder import sanitize_json
from specd.prompt.tools.text_stream import NotAToolCall, Reading, TextStream, json_text

#: Keys that models use for the parts of a call.
NAME_KEYS = ("name", "function", "tool_name", "function_name", "tool")
ARGUMENT_KEYS = ("arguments", "parameters", "args")
ID_KEYS = ("id", "call_id", "tool_call_id")


def decode_json(text: str) -> object:
    """Decode JSON.  Raises NotAToolCall if it is not valid JSON.

    Line ends inside strings are accepted, because models often do not escape them in code.
    """
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse_constant, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise NotAToolCall from error
    return sanitize_json(value) if "\\u" in text else value


def read_json(source: TextStream) -> Reading[object]:
    """Read the JSON object or array that begins here.  Raises NotAToolCall if there is none."""
    return decode_json((yield from json_text(source)))


def calls_of(payload: object) -> list[ToolCall]:
    """Return one call, or the calls of a list.  Raises NotAToolCall."""
    if isinstance(payload, list) and payload:
        return [call_of(entry) for entry in payload]
    return [call_of(payload)]


def call_of(payload: object) -> ToolCall:
    """Return a call from a name and optional arguments, an object or JSON in a string."""
    if not isinstance(payload, dict):
        raise NotAToolCall
    inner = payload.get("function")
    if isinstance(inner, dict):
        payload = {**payload, **inner}
    name = _first_text(payload, NAME_KEYS)
    if not name:
        raise NotAToolCall
    given = next((payload[key] for key in ARGUMENT_KEYS if key in payload), None)
    return ToolCall(name=name, arguments=arguments_of(given), id=_first_text(payload, ID_KEYS))


def arguments_of(given: object) -> Mapping[str, object]:
    if isinstance(given, str):
        given = decode_json(given) if given.strip() else None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise NotAToolCall
    return given


def _first_text(payload: Mapping[str, object], keys: tuple[str, ...]) -> str:
    found = (payload.get(key) for key in keys)
    return next((text.strip() for text in found if isinstance(text, str)), "")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


def finite(text: str) -> float:
    """Raise ValueError for a number that JSON does not have."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
