"""Which grammars are refused, with which message, and what each kind accepts."""

from __future__ import annotations

import json

import pytest

from specd.core import Grammar, GrammarKind
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.state import GrammarState
from specd.engine.grammar.translation import MAX_TEXT_BYTES, compile_matcher
from specd.errors import InvalidRequest
from tests.engine.grammar.vocabulary import ENDS, ByteVocabulary

COMPILER = GrammarCompiler(ByteVocabulary())


def begin(kind: GrammarKind, text: str) -> GrammarState:
    grammar = Grammar(kind=kind, text=text)
    return GrammarState(compile_matcher(grammar, COMPILER.table.tokenizer), COMPILER.table)


def reads(state: GrammarState, answer: str) -> bool:
    """Return whether the grammar accepts the answer, read byte by byte, as complete."""
    tokens = list(answer.encode())
    for token in tokens:
        if not state.allows(token):
            break
        state.accept(token)
    whole = state.n_accepted == len(tokens) and state.allows(ENDS[0])
    state.rollback(state.n_accepted)
    return whole


@pytest.mark.parametrize(
    "kind,text,words",
    [
        ("json_schema", "{", "invalid JSON schema: Expecting property name"),
        ("json_schema", "[]", "invalid JSON schema: it must be an object"),
        ("json_schema", "[" * 100_000, "invalid JSON schema: maximum recursion depth"),
        ("json_schema", '{"items": ' * 700 + "{}" + "}" * 700, "JSON schema: it is nested too"),
        ("json_schema", '{"type": "strng"}', "invalid JSON schema: Invalid type: strng"),
        ("json_schema", '{"type": "string", "pattern": "("}', "unclosed group"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "invalid JSON schema: .*none"),
        ("json_schema", '{"const": "\\ud800"}', "invalid JSON schema: .*hex escape"),
        ("json_schema", " " * MAX_TEXT_BYTES + "{}", "JSON schema is larger than 256 KiB"),
        ("gbnf", 'answer ::= "a"', "invalid GBNF grammar: No 'root' rule"),
        ("gbnf", "root ::= [", "invalid GBNF grammar: Unexpected end"),
        ("gbnf", "root ::= " + "(" * 100_000, "invalid GBNF grammar: maximum recursion depth"),
        ("regex", "a(", "invalid regular expression: .*unclosed group"),
    ],
)
def test_an_invalid_grammar_is_refused_with_its_reason(kind: str, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"(?s){words}") as refused:
        begin(GrammarKind(kind), text)
    assert len(str(refused.value)) < 500
    assert "<" not in str(refused.value)


SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "A person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "in full"},
        "age": {"type": "integer", "minimum": 0, "default": 7},
        "pets": {"type": "array", "items": {"$ref": "#/definitions/pet"}},
    },
    "required": ["name", "pets"],
    "additionalProperties": True,
    "definitions": {"pet": {"enum": ["cat", "dog", None]}},
}


@pytest.mark.parametrize(
    "answer",
    [
        '{"name":"Zoë","pets":[]}',
        '{"name": "Zo\\u00eb \\"Z\\" \\ud83d\\ude00 \\n", "age": 37, "pets": ["cat", null]}',
        '{\n  "name": "",\n  "pets": [\n    "dog"\n  ],\n  "more": {"x": [1.5e3, true]}\n}',
    ],
)
def test_a_schema_allows_compact_and_indented_answers(answer: str) -> None:
    assert json.loads(answer)
    assert reads(begin(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), answer)


@pytest.mark.parametrize(
    "answer",
    [
        '{"name":"Zoë"}',
        '{"name":"Zoë","pets":["cow"]}',
        '{"name":"Zoë","age":-1,"pets":[]}',
        '{"name":"\\ud800","pets":[]}',
        '{"name":"line\nend","pets":[]}',
        # The grammar does not allow unlimited blanks and line ends.
        '{"name":    "Zoë","pets":[]}',
        '{\n\n\n"name":"Zoë","pets":[]}',
        ' {"name":"Zoë","pets":[]}',
        '{"name":"Zoë","pets":[]}\n',
    ],
)
def test_a_schema_allows_nothing_else(answer: str) -> None:
    assert not reads(begin(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), answer)


def test_unsupported_keywords_are_ignored_as_in_ollama() -> None:
    schema = '{"type": "string", "format": "phone", "not": {"const": "x"}, "x-guidance": 3}'
    assert reads(begin(GrammarKind.JSON_SCHEMA, schema), '"x"')


@pytest.mark.contract("format.json")
def test_format_json_allows_only_objects() -> None:
    state = begin(GrammarKind.JSON, "")
    assert reads(state, '{"a": [1, "b", {}, null]}')
    assert not reads(state, "[1]")
    assert reads(begin(GrammarKind.JSON_SCHEMA, "true"), "[1]")


def test_gbnf_follows_llama_cpp() -> None:
    text = r"""
    # moves of a game
    root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
    move ::= (pawn | "O-O" "-O"?) [+#]?
    pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBQR])?
    """
    state = begin(GrammarKind.GBNF, text)
    assert reads(state, "1. e4 e5\n12. dxe5 O-O-O+\n")
    assert not reads(state, "1. e4 e9\n")
    assert not reads(state, "1. e4\n")


def test_a_regular_expression_is_the_whole_answer() -> None:
    state = begin(GrammarKind.REGEX, r"\d{3}/[é/]+")
    assert reads(state, "123/é/")
    assert not reads(state, "x123/é")
    assert not reads(state, "123/éx")
