"""Conversion of bare text to the types in the tool's schema."""

from __future__ import annotations

from typing import Any

import pytest

from specd.prompt.tools import Tools


def value(schema: object, text: str, **root: Any) -> object:
    parameters = {"type": "object", "properties": {"x": schema}, **root}
    tools = Tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    return tools.value("f", "x", text)


@pytest.mark.parametrize(
    "schema,text,expected",
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, ' {"a": 1}\n', ' {"a": 1}\n'),
        ({"type": "integer"}, " 12 ", 12),
        ({"type": "integer"}, "-3.0", -3),
        ({"type": "integer"}, "3.5", "3.5"),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "number"}, "12", 12),
        ({"type": "number"}, "1.5e3", 1500.0),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, f"1{299 * '0'}e99", f"1{299 * '0'}e99"),
        ({}, "1" * 400, "1" * 400),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false\n", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"type": "array"}, "a, b", "a, b"),
        ({"type": "array"}, "[a]", "[a]"),
        ({"type": "object"}, '{"b": 1, "a": NaN}', '{"b": 1, "a": NaN}'),
        ({"type": "object"}, '\n{"b": 1, "a": 2}', {"b": 1, "a": 2}),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "string"]}, "12", 12),
        ({"type": ["integer", "string"]}, "12th", "12th"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "NULL", None),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, "[1]", [1]),
        ({"enum": ["1", "2"]}, "1", "1"),
        # Without a schema, valid JSON is decoded.
        ({}, "12", 12),
        ({}, "012", "012"),
        ({}, "12.5", 12.5),
        ({}, "true", True),
        ({}, "null", None),
        ({}, "[1]", [1]),
        ({}, "{x}", "{x}"),
        ({}, "words", "words"),
        (None, "12", 12),
    ],
)
def test_text_is_converted_to_the_parameters_type(
    schema: object, text: str, expected: object
) -> None:
    found = value(schema, text)
    assert found == expected
    assert type(found) is type(expected)


def test_references_are_followed_within_the_parameters() -> None:
    definitions = {"$defs": {"Count": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert value({"$ref": "#/$defs/Count"}, "7", **definitions) == 7
    assert value({"$ref": "#/$defs/Loop"}, "7", **definitions) == 7
    assert value({"$ref": "#/$defs/None"}, "7.0", **definitions) == 7.0


@pytest.mark.parametrize(
    "tools",
    [
        [{}],
        [{"function": None}],
        [{"function": {"name": 3}}],
        [{"function": {"name": "f", "parameters": []}}],
        [{"function": {"name": "f", "parameters": {"properties": [1]}}}],
        [{"function": {"name": "f", "parameters": {"properties": {"x": {"type": 3}}}}}],
        [{"name": "f"}],
    ],
)
def test_tools_of_any_shape_are_accepted(tools: list[dict[str, object]]) -> None:
    known = Tools(tools)
    assert known.value("f", "x", "word") == "word"
    assert len(known.names) <= 1
    known.parameters("f")
