"""JSON as Go's encoding/json writes it: no spaces, sorted keys, `<`, `>` and `&` escaped."""

from __future__ import annotations

from collections.abc import Iterable

from specd.go_json_encoder import json_number, json_string, replace_surrogates
from specd.go_template.values import NoValue, Struct


def json_text(value: object) -> str:
    """Return the value as JSON; an empty text if it is not valid JSON, such as NaN or infinity."""
    try:
        return _encoded(value)
    except ValueError:
        return ""


def _encoded(value: object) -> str:
    match value:
        case str():
            return json_string(replace_surrogates(value))
        case None | NoValue():
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return json_number(value)
        case Struct():
            fields = value.fields if value.json is None else value.json
            return _object(fields.items())
        case dict():
            return _object((key, value[key]) for key in sorted(value))
        case list():
            return "[" + ",".join(map(_encoded, value)) + "]"
        case _:
            raise ValueError(value)


def _object(items: Iterable[tuple[str, object]]) -> str:
    return "{" + ",".join(f"{_encoded(key)}:{_encoded(value)}" for key, value in items) + "}"
