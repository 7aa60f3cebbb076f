"""Conversion of JSON Schemas to the stricter meaning that they have in llama.cpp and Ollama.

llguidance follows the standard, which lets a model add properties and write numbers without end.
Clients expect neither (llama.cpp: grammars/README.md, common/json-schema-to-grammar).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: Most digits of an integer in llama.cpp.
_MOST_DIGITS: Final = 16
_LIMIT: Final = 10**_MOST_DIGITS - 1
#: Keywords with schemas for parts of the value: a single schema, or one for each name.
_ONE: Final = ("items", "additionalProperties", "contains")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
#: Keywords with schemas for the same value: a list of schemas, or a single one.
_LISTS: Final = ("anyOf", "oneOf", "allOf")
_SAME: Final = ("then", "else")

Schema = dict[str, object]


def as_llama_cpp(schema: Schema) -> Schema:
    """Return the schema with llama.cpp's defaults.

    Objects with `properties` have no others, and integers have at most 16 digits, unless the schema
    says otherwise.
    """
    return _SchemaConverter(schema).read(schema)


class _SchemaConverter:
    """The converter of one schema.  It leaves `not` and `if` as they are."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        #: Ids of schemas that describe only part of an object; closing one would forbid the rest.
        self._parts: set[int] = set()
        self._seen: set[tuple[int, bool]] = set()
        self._find_parts(root, is_part=False)

    def read(self, schema: Schema) -> Schema:
        """Return a converted copy of a schema."""
        read = dict(schema)
        for key in (*_ONE, *_SAME):
            if key in schema:
                read[key] = self._inner(schema[key])
        for key in (*_LISTS, "prefixItems", "items"):
            if isinstance(value := schema.get(key), list):
                read[key] = [self._inner(each) for each in value]
        for key in _NAMED:
            if isinstance(value := schema.get(key), dict):
                read[key] = {name: self._inner(each) for name, each in value.items()}
        if id(schema) not in self._parts:
            _close(read)
            _bound(read)
        return read

    def _inner(self, value: object) -> object:
        return self.read(value) if isinstance(value, dict) else value

    def _find_parts(self, schema: object, *, is_part: bool) -> None:
        if not isinstance(schema, dict) or (id(schema), is_part) in self._seen:
            return
        self._seen.add((id(schema), is_part))
        if is_part:
            self._parts.add(id(schema))
        same = list(_same(schema))
        if isinstance(reference := schema.get("$ref"), str):
            same.append(self._resolved(reference))
        n_others = len(schema.get("allOf", ())) if isinstance(schema.get("allOf"), list) else 0
        n_others += sum(key in schema for key in ("anyOf", "oneOf", "$ref", "if"))
        is_split = is_part or n_others + ("properties" in schema) > 1
        for each in same:
            self._find_parts(each, is_part=is_split)
        for each in _others(schema):
            self._find_parts(each, is_part=False)

    def _resolved(self, reference: str) -> object:
        """Return the schema at `#` or `#/$defs/name`; None for other references."""
        if not reference.startswith("#"):
            return None
        found: object = self._root
        for step in reference.split("/")[1:]:
            found = found.get(step) if isinstance(found, dict) else None
        return found


def _same(schema: Schema) -> Iterator[object]:
    """Yield the subschemas that apply to the same value."""
    for key in _LISTS:
        if isinstance(value := schema.get(key), list):
            yield from value
    yield from (schema[key] for key in _SAME if key in schema)


def _others(schema: Schema) -> Iterator[object]:
    """Yield the subschemas that apply to parts of the value."""
    yield from (schema[key] for key in _ONE if key in schema)
    for key in ("prefixItems", "items"):
        if isinstance(value := schema.get(key), list):
            yield from value
    for key in _NAMED:
        if isinstance(value := schema.get(key), dict):
            yield from value.values()


def _close(schema: Schema) -> None:
    """Forbid further properties, unless other keywords may define some."""
    others = (*_LISTS, "$ref", "if", "unevaluatedProperties", "patternProperties")
    properties = schema.get("properties")
    if any(key in schema for key in others) or not isinstance(properties, dict):
        return
    if "additionalProperties" in schema:
        return
    schema["additionalProperties"] = False
    if isinstance(required := schema.get("required"), list):
        # llama.cpp ignores required properties that have no schema.
        schema["required"] = [name for name in required if name in properties]


def _bound(schema: Schema) -> None:
    """Limit an integer to llama.cpp's number of digits on the sides without a bound."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "integer" not in kinds or "number" in kinds or "enum" in schema or "const" in schema:
        return
    low = _number(schema, "minimum", "exclusiveMinimum")
    high = _number(schema, "maximum", "exclusiveMaximum")
    if low is None and (high is None or high > -_LIMIT):
        schema["minimum"] = -_LIMIT
    if high is None and (low is None or low < _LIMIT):
        schema["maximum"] = _LIMIT


def _number(schema: Schema, *keys: str) -> float | None:
    """Return the first of the keys' values that is a number, or None."""
    found = (schema.get(key) for key in keys)
    numbers = (n for n in found if isinstance(n, int | float) and not isinstance(n, bool))
    return next(numbers, None)
