"""JSON of a model as a call: the shapes in which models write name and arguments."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NoReturn

from specd.core import ToolCall
from specd.json_text import sendable
from specd.prompt.tools.source import NotACall

#: Under which keys models write the parts of a call.
NAME_KEYS = ("name", "function", "tool_name", "function_name", "tool")
ARGUMENT_KEYS = ("arguments", "parameters", "args")
ID_KEYS = ("id", "call_id", "tool_call_id")


def decoded(text: str) -> object:
    """Raises NotACall where it is no JSON that could be sent on.

    Line ends inside of strings are taken: models that write code forget to escape them.
    """
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise NotACall from error
    return sendable(value) if "\\u" in text else value


def calls_of(payload: object) -> list[ToolCall]:
    """One call, or the calls of a list.  Raises NotACall."""
    if isinstance(payload, list) and payload:
        return [call_of(entry) for entry in payload]
    return [call_of(payload)]


def call_of(payload: object) -> ToolCall:
    """A name, and arguments as an object, as JSON in a string, or none at all."""
    if not isinstance(payload, dict):
        raise NotACall
    inner = payload.get("function")
    if isinstance(inner, dict):
        payload = {**payload, **inner}
    name = _first_text(payload, NAME_KEYS)
    if not name:
        raise NotACall
    given = next((payload[key] for key in ARGUMENT_KEYS if key in payload), None)
    return ToolCall(name=name, arguments=arguments_of(given), id=_first_text(payload, ID_KEYS))


def arguments_of(given: object) -> Mapping[str, object]:
    if isinstance(given, str):
        given = decoded(given) if given.strip() else None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise NotACall
    return given


def _first_text(payload: Mapping[str, object], keys: tuple[str, ...]) -> str:
    found = (payload.get(key) for key in keys)
    return next((text.strip() for text in found if isinstance(text, str)), "")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def finite(text: str) -> float:
    """Raises ValueError for a number that JSON cannot carry."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
