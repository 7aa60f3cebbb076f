"""The tools of a request, with the types of their parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from specd.prompt.tools.call import decode_json, finite
from specd.prompt.tools.text_stream import NotAToolCall

_INTEGER = re.compile(r"[+-]?\d{1,300}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?")
_BOOLEANS = {"true": True, "false": False}


class Tools:
    """tools: JSON objects in OpenAI's shape, {"type": "function", "function": {...}}."""

    def __init__(self, tools: Sequence[Mapping[str, object]]) -> None:
        functions = [_mapping(tool.get("function", tool)) for tool in tools]
        self._schemas = {
            name: _mapping(function.get("parameters"))
            for function in functions
            if isinstance(name := function.get("name"), str) and name
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._schemas)

    def parameters(self, name: str) -> tuple[str, ...]:
        """Return the parameters in the schema's order; none for an unknown tool."""
        return tuple(_mapping(self._schemas.get(name, {}).get("properties")))

    def value(self, name: str, parameter: str, text: str) -> object:
        """Convert bare text to the type in the parameter's schema, else return the text.

        The most specific of several types wins.  Without a schema, valid JSON is decoded.
        """
        schema = self._schemas.get(name, {})
        properties = _mapping(schema.get("properties"))
        types = frozenset(_types(_mapping(properties.get(parameter)), schema, depth=4))
        stripped = text.strip()
        if stripped.lower() == "null" and types != {"string"}:
            return None
        if ("boolean" in types or not types) and stripped.lower() in _BOOLEANS:
            return _BOOLEANS[stripped.lower()]
        if ("integer" in types or "number" in types or not types) and _NUMBER.fullmatch(stripped):
            return _number(stripped, types, text)
        if stripped[:1] == "[" and ("array" in types or not types):
            return _json(text)
        if stripped[:1] == "{" and ("object" in types or not types):
            return _json(text)
        return text


def _number(stripped: str, types: frozenset[str], text: str) -> object:
    if _INTEGER.fullmatch(stripped):
        # "007" without a schema is a name, not a number.
        return int(stripped) if types or str(int(stripped)) == stripped else text
    try:
        number = finite(stripped)
    except ValueError:
        return text
    if number.is_integer() and types and "number" not in types:
        return int(number)
    if types and "number" not in types:
        return text
    return number


def _json(text: str) -> object:
    try:
        return decode_json(text)
    except NotAToolCall:
        return text


def _types(
    schema: Mapping[str, object], root: Mapping[str, object], *, depth: int
) -> Iterator[str]:
    """Return the types in `type`, in the members of a union, in a reference or in an enum."""
    named = schema.get("type")
    yield from [named] if isinstance(named, str) else _string_list(named)
    if depth == 0:
        return
    for union in ("anyOf", "oneOf", "allOf"):
        members = schema.get(union)
        for member in members if isinstance(members, list) else []:
            yield from _types(_mapping(member), root, depth=depth - 1)
    if isinstance(reference := schema.get("$ref"), str):
        yield from _types(_resolve_reference(reference, root), root, depth=depth - 1)
    if not named and _string_list(schema.get("enum")):
        yield "string"


def _resolve_reference(reference: str, root: Mapping[str, object]) -> Mapping[str, object]:
    """Resolve `#/$defs/Name` within the tool's parameters."""
    found = root
    for key in reference.removeprefix("#/").split("/"):
        found = _mapping(found.get(key))
    return found


def _string_list(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
