"""JSON Schemas as llama.cpp, and so Ollama, reads them, for a library that keeps to the letter.

The letter lets a model add properties, and write a number for ever; both end in answers that no
client asked for (llama.cpp: grammars/README.md, common/json-schema-to-grammar).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: llama.cpp's integers have so many digits at most.
_MOST_DIGITS: Final = 16
_LIMIT: Final = 10**_MOST_DIGITS - 1
#: Keywords whose values hold schemas: one, a list, or one for each name.
_ONE: Final = ("items", "additionalProperties", "contains", "not", "if", "then", "else")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
#: Where a schema is one part of what an object must be: closing it would shut out the others.
_JOINING: Final = (
    *("allOf", "anyOf", "oneOf", "$ref", "if"),
    *("unevaluatedProperties", "patternProperties"),
)

Schema = dict[str, object]


def as_llama_cpp(schema: Schema) -> Schema:
    """Objects with `properties` have no others, integers have at most 16 digits, unless said."""
    return _read(schema, joined=_joined(schema), part=False)


def _read(schema: Schema, *, joined: frozenset[int], part: bool) -> Schema:
    """part: of an `allOf`."""
    read = dict(schema)
    for key in _ONE:
        if isinstance(value := schema.get(key), dict):
            read[key] = _read(value, joined=joined, part=False)
    for key in _LISTS:
        if isinstance(value := schema.get(key), list):
            inside = key == "allOf" and len(value) > 1
            read[key] = [_inner(each, joined, part=part or inside) for each in value]
    for key in _NAMED:
        if isinstance(value := schema.get(key), dict):
            read[key] = {name: _inner(each, joined, part=False) for name, each in value.items()}
    is_whole = not part and id(schema) not in joined and not any(key in schema for key in _JOINING)
    if "properties" in schema and is_whole:
        read.setdefault("additionalProperties", False)
    if schema.get("type") == "integer":
        _bound(read)
    return read


def _inner(value: object, joined: frozenset[int], *, part: bool) -> object:
    return _read(value, joined=joined, part=part) if isinstance(value, dict) else value


def _bound(schema: Schema) -> None:
    if "enum" in schema or "const" in schema:
        return
    if "exclusiveMinimum" not in schema:
        schema.setdefault("minimum", -_LIMIT)
    if "exclusiveMaximum" not in schema:
        schema.setdefault("maximum", _LIMIT)


def _joined(schema: Schema) -> frozenset[int]:
    """The definitions that some `allOf` of several parts names."""
    return frozenset(
        id(found)
        for reference in _references(schema, inside=False)
        if (found := _resolved(schema, reference)) is not None
    )


def _references(value: object, *, inside: bool) -> Iterator[str]:
    if isinstance(value, dict):
        if inside and isinstance(reference := value.get("$ref"), str):
            yield reference
        for key, each in value.items():
            several = key == "allOf" and isinstance(each, list) and len(each) > 1
            yield from _references(each, inside=several)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each, inside=inside)


def _resolved(schema: Schema, reference: str) -> Schema | None:
    """`#/$defs/name`; None for any other place."""
    found: object = schema
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) and reference.startswith("#/") else None
