"""JSON as Go's encoding/json writes it, and values that templates print as JSON."""

from __future__ import annotations

from specd.go_json_encoder import go_json, sanitize_json
from specd.go_template.values import NoValue, Struct


def json_text(value: object) -> str:
    """Return the value as JSON; an empty text if it is not valid JSON, such as NaN or infinity."""
    try:
        return go_json(sanitize_json(_plain(value))).decode().removesuffix("\n")
    except ValueError:
        return ""


def _plain(value: object) -> object:
    """Return the value as JSON types; a map is sorted by key, a struct keeps its order."""
    match value:
        case NoValue():
            return None
        case Struct():
            fields = value.fields if value.json is None else value.json
            return {key: _plain(item) for key, item in fields.items()}
        case dict():
            return {key: _plain(value[key]) for key in sorted(value)}
        case list():
            return [_plain(item) for item in value]
        case _:
            return value


class JsonMap(dict[str, object]):
    def go_string(self) -> str:
        return json_text(self)


class JsonList(list[object]):
    """List that prints as JSON; an empty one is Go's nil slice, `null`."""

    def go_string(self) -> str:
        return json_text(self) if self else "null"


class JsonStruct(Struct):
    __slots__ = ()

    def go_string(self) -> str:
        return json_text(self)
