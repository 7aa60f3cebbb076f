"""What a JSON Schema leaves unsaid is read as llama.cpp reads it."""

from __future__ import annotations

import json

import pytest

from specd.core import Grammar, GrammarKind
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.schema import as_llama_cpp
from tests.engine.grammar.vocabulary import ENDS, ByteVocabulary


def accepts(schema: object, text: str) -> bool:
    """Whether an answer may be just that text."""
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))
    state = GrammarCompiler(ByteVocabulary()).compile(grammar)
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
    ],
)
def test_what_is_unsaid(schema: object, text: str, is_allowed: bool) -> None:
    assert accepts(schema, text) is is_allowed


def test_data_among_the_keywords_is_left_alone() -> None:
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
