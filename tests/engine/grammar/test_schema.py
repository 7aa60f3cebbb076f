"""JSON Schemas get llama.cpp's defaults where they say nothing."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import Grammar, GrammarKind
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.schema import _LIMIT, Schema, as_llama_cpp
from specd.engine.grammar.state import GrammarState
from specd.engine.grammar.translation import compile_matcher
from tests.engine.grammar.vocabulary import ENDS, ByteVocabulary

#: A schema and what is valid for it.
Valued = tuple[Schema, object]
#: Of strings; a DEL is no part of one here unless it is escaped, as in llama.cpp's own grammar.
_SPOKEN = st.characters(codec="utf-8", exclude_characters="\x7f")

COMPILER = GrammarCompiler(ByteVocabulary())


def accepts(schema: object, text: str) -> bool:
    """Return whether the schema accepts the text as a whole answer."""
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))
    state = GrammarState(compile_matcher(grammar, COMPILER.table.tokenizer), COMPILER.table)
    for byte in text.encode():
        if not state.allows(byte):
            return False
        state.accept(byte)
    return any(state.allows(token) for token in ENDS)


NAMED = {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]}
AGED = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    "schema, text, is_allowed",
    [
        (NAMED, '{"name":1}', True),
        (NAMED, '{"name":1,"age":2}', False),
        ({**NAMED, "additionalProperties": True}, '{"name":1,"age":2}', True),
        ({**NAMED, "additionalProperties": {"type": "null"}}, '{"name":1,"age":null}', True),
        ({"type": "object"}, '{"anything":1}', True),
        ({"allOf": [NAMED, AGED]}, '{"name":1,"age":2}', True),
        ({"anyOf": [NAMED, AGED]}, '{"age":2}', True),
        ({"anyOf": [NAMED, AGED]}, '{"age":2,"x":3}', False),
        (
            {"$defs": {"N": NAMED}, "allOf": [{"$ref": "#/$defs/N"}, AGED]},
            '{"name":1,"age":2}',
            True,
        ),
        ({"$defs": {"N": NAMED}, "$ref": "#/$defs/N"}, '{"name":1,"age":2}', False),
        ({"type": "array", "items": NAMED}, '[{"name":1,"age":2}]', False),
        ({"type": "integer"}, "9" * 16, True),
        ({"type": "integer"}, "-" + "9" * 16, True),
        ({"type": "integer"}, "9" * 17, False),
        ({"type": "integer", "minimum": 0}, "-1", False),
        ({"type": "integer", "exclusiveMaximum": 3}, "2", True),
        ({"enum": [1, 10**18]}, str(10**18), True),
        ({"type": "integer", "enum": [10**18]}, str(10**18), True),
        ({"type": "integer", "minimum": 10**17}, str(10**17), True),
        ({"type": "integer", "exclusiveMaximum": -(10**17)}, str(-(10**18)), True),
        ({"type": ["integer", "null"]}, "9" * 17, False),
        ({"type": ["integer", "number"]}, "9" * 17, True),
        ({**NAMED, "required": ["name", "unheard"]}, '{"name":1}', True),
        ({**NAMED, "anyOf": [AGED]}, '{"name":1,"age":2}', True),
        ({**NAMED, "allOf": [AGED]}, '{"name":1,"age":2}', True),
        ({"$defs": {"N": NAMED}, "$ref": "#/$defs/N", **AGED}, '{"name":1,"age":2}', True),
        (
            {
                "$defs": {"N": NAMED, "M": {"allOf": [{"$ref": "#/$defs/N"}]}},
                "allOf": [{"$ref": "#/$defs/M"}, AGED],
            },
            '{"name":1,"age":2}',
            True,
        ),
        ({"$defs": {"N": NAMED}, "allOf": [{"$ref": "#/$defs/N"}]}, '{"name":1,"x":2}', False),
        ({"type": "array", "prefixItems": [NAMED]}, '[{"name":1,"age":2}]', False),
    ],
)
def test_defaults_follow_llama_cpp(schema: object, text: str, is_allowed: bool) -> None:
    assert accepts(schema, text) is is_allowed


def test_values_that_look_like_keywords_are_unchanged() -> None:
    data: dict[str, object] = {"type": "integer", "properties": {}}
    schema: dict[str, object] = {"enum": [data], "const": data, "default": data, "examples": [data]}
    assert as_llama_cpp(schema) == schema


def test_a_property_may_have_any_name() -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"type": {"type": "integer"}, "allOf": NAMED},
    }
    read = as_llama_cpp(schema)
    assert read["additionalProperties"] is False
    assert isinstance(read["properties"], dict)
    assert read["properties"]["allOf"]["additionalProperties"] is False
    assert "additionalProperties" not in schema


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Valued]) -> Valued:
    """Draw an object schema and a value; some properties are required, some others present."""
    names = draw(st.lists(st.sampled_from(["a", "b", "type", "é", "$ref"]), unique=True))
    properties, value = {}, {}
    required = []
    for name in names:
        properties[name], given = draw(inner)
        if is_required := draw(st.booleans()):
            required.append(name)
        if is_required or draw(st.booleans()):
            value[name] = given
    return {"type": "object", "properties": properties, "required": required}, value


@st.composite
def choices(draw: st.DrawFn, inner: st.SearchStrategy[Valued]) -> Valued:
    among = draw(st.lists(inner, min_size=1, max_size=3))
    return {"anyOf": [schema for schema, _ in among]}, draw(st.sampled_from(among))[1]


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Valued]) -> Valued:
    schema, value = draw(inner)
    return {"type": "array", "items": schema}, [value] * draw(st.integers(0, 2))


@st.composite
def scalars(draw: st.DrawFn) -> Valued:
    low, high = sorted((draw(st.integers(-(10**17), 10**17)), draw(st.integers(-(10**16), 10**16))))
    small = st.integers(-_LIMIT, _LIMIT)
    # llguidance joins the values of an enum as doubles; JSON promises no more digits either.
    listed = max(min(low, 2**53), -(2**53))
    kinds: list[tuple[Schema, st.SearchStrategy[object]]] = [
        ({"type": "integer"}, small),
        ({"type": ["integer", "null"]}, small | st.none()),
        ({"type": "integer", "minimum": low, "maximum": high}, st.integers(low, high)),
        ({"type": "integer", "minimum": low}, st.integers(low, max(low, _LIMIT))),
        ({"type": "integer", "maximum": high}, st.integers(min(high, -_LIMIT), high)),
        ({"type": "string"}, st.text(_SPOKEN, max_size=3)),
        ({"enum": [listed, "x", None]}, st.sampled_from([listed, "x", None])),
        ({"type": "boolean"}, st.booleans()),
    ]
    schema, values = draw(st.sampled_from(kinds))
    return schema, draw(values)


def schemas(inner: st.SearchStrategy[Valued]) -> st.SearchStrategy[Valued]:
    return objects(inner) | choices(inner) | arrays(inner)


def closed(schema: object) -> object:
    """Return the schema with llama.cpp's implied closing; no property is named `properties`."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    read = {key: closed(each) for key, each in schema.items()}
    return {**read, "additionalProperties": False} if "properties" in schema else read


@settings(deadline=None)
@given(st.recursive(scalars(), schemas, max_leaves=6), st.booleans())
def test_valid_objects_without_further_properties_are_accepted(
    made: Valued, is_named: bool
) -> None:
    schema, value = made
    jsonschema.validate(value, closed(schema))  # type: ignore[arg-type]
    if is_named:
        schema = {"$defs": {"it": schema}, "$ref": "#/$defs/it"}
    assert accepts(schema, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@settings(deadline=None)
@given(objects(scalars()), objects(scalars()), st.sampled_from(["allOf", "anyOf", "$ref"]))
def test_partial_schemas_are_not_closed(one: Valued, other: Valued, joined_by: str) -> None:
    """Whatever says it: properties of its own and those of a part, which has other names."""
    (schema, value), (part, more) = one, other
    properties = {f"x{name}": each for name, each in part["properties"].items()}  # type: ignore[attr-defined]
    part = {"properties": properties, "required": [f"x{name}" for name in part["required"]]}  # type: ignore[attr-defined]
    both = {"$defs": {"part": part}, **schema, joined_by: [part]}
    if joined_by == "$ref":
        both["$ref"] = "#/$defs/part"
    whole = {**value, **{f"x{name}": each for name, each in more.items()}}  # type: ignore[dict-item, attr-defined]
    jsonschema.validate(whole, both)
    assert accepts(both, json.dumps(whole, ensure_ascii=False, separators=(",", ":")))
