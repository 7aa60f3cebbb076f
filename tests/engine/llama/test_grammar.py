"""Structured answers of the demo pair: valid at any temperature, the same with any drafts."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specd.core import (
    Done,
    Failed,
    FailureKind,
    Grammar,
    GrammarKind,
    SpeculationMode,
    StopReason,
    Token,
)
from specd.ipc.messages import Finished, Tokens
from tests.engine.grammar.test_state import schemas
from tests.engine.llama.conftest import Engine, request

DRAFTED = {"n_draft_max": 5, "mode": SpeculationMode.FIXED}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "motto": {"type": "string", "pattern": r'^[é"\\\n]{2,6}$'},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "height": {"type": "number", "minimum": 0.5, "maximum": 2.5},
        "role": {"enum": ["admin", "größer", None, 7, {"x": [1, "😀"]}]},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 15},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
                "tags": {
                    "type": "array",
                    "items": {"anyOf": [{"type": "boolean"}, {"const": 'q"\\uote'}]},
                    "minItems": 1,
                    "maxItems": 3,
                },
            },
            "required": ["street", "zip", "tags"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "motto", "age", "height", "role", "address"],
    "additionalProperties": False,
}
FUNCTIONS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "function": {"type": "string", "pattern": "^[a-z_]{1,12}$"},
            "arguments": {
                "type": "array",
                "items": {"type": ["integer", "boolean", "null"], "minimum": -9, "maximum": 9},
                "maxItems": 4,
            },
            "async": {"type": "boolean"},
        },
        "required": ["function", "arguments"],
        "additionalProperties": False,
    },
    "minItems": 2,
    "maxItems": 4,
}
CALL = Grammar(
    kind=GrammarKind.GBNF,
    text=r"""
root ::= "def " name "(" (name (", " name){0,3})? "):\n    return " [0-9]{1,4} "\n"
name ::= [a-z_] [a-z_0-9]{0,9}
""",
)


def of_schema(schema: object) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))


@pytest.mark.contract("format.schema")
@pytest.mark.parametrize("schema", [PERSON, FUNCTIONS], ids=["person", "functions"])
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_answers_fit_their_schema_with_and_without_speculation(
    invariant_demo: Engine, schema: dict[str, Any], temperature: float
) -> None:
    n_accepted = 0
    for seed, prompt in enumerate(["# as JSON\nvalue = ", "def load_user(", "{"]):
        asked = {
            "grammar": of_schema(schema),
            "temperature": temperature,
            "seed": seed,
            "n_predict": 400,
        }
        plain, done = invariant_demo.answer(prompt, n_draft_max=0, **asked)
        assert done.reason is StopReason.STOP
        jsonschema.validate(json.loads(plain), schema)
        drafted, done = invariant_demo.answer(prompt, **DRAFTED, **asked)
        assert drafted == plain
        assert invariant_demo.answer(prompt, **asked)[0] == plain
        n_accepted += done.speculation.draft_n_accepted
    assert n_accepted > 50, "a drafter in the same grammar guesses its signs at least"


@pytest.mark.contract("format.schema")
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schemas, st.integers(0, 999), st.sampled_from([0.0, 1.5]))
def test_answers_fit_any_small_schema(
    invariant_demo: Engine, schema: dict[str, Any], seed: int, temperature: float
) -> None:
    asked = {
        "grammar": of_schema(schema),
        "temperature": temperature,
        "seed": seed,
        "n_predict": 450,
    }
    plain, done = invariant_demo.answer("value = ", n_draft_max=0, **asked)
    assert done.reason is StopReason.STOP
    jsonschema.validate(
        json.loads(plain), schema, format_checker=jsonschema.FormatChecker(["date"])
    )
    assert invariant_demo.answer("value = ", **DRAFTED, **asked)[0] == plain


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_answers_follow_other_kinds_of_grammar(invariant_demo: Engine, temperature: float) -> None:
    asked = {"temperature": temperature, "seed": 3, "n_predict": 200}
    date = Grammar(kind=GrammarKind.REGEX, text="(19|20)[0-9]{2}-[01][0-9]")
    for grammar, pattern in ((CALL, r"def \w+\((\w+(, \w+)*)?\):\n    return \d+\n"), (date, "")):
        plain, done = invariant_demo.answer("x = 1\n", n_draft_max=0, grammar=grammar, **asked)
        assert done.reason is StopReason.STOP
        assert re.fullmatch(pattern or date.text, plain)
        drafted = invariant_demo.answer("x = 1\n", grammar=grammar, **DRAFTED, **asked)[0]
        assert drafted == plain


def test_a_truncated_answer_is_a_prefix_of_the_whole(invariant_demo: Engine) -> None:
    asked = {"grammar": of_schema(PERSON), "seed": 1}
    whole, _ = invariant_demo.answer("user = ", n_predict=400, **asked)
    for n_predict in (1, 2, 17):
        for drafting in ({"n_draft_max": 0}, DRAFTED):
            cut, done = invariant_demo.answer("user = ", n_predict=n_predict, **asked, **drafting)
            assert done.reason is StopReason.LENGTH
            assert done.usage.n_generated == n_predict
            assert whole.startswith(cut)


@pytest.mark.parametrize("stop", ['"height"', '", "', "}"])
def test_a_stop_string_ends_an_answer_within_its_grammar(invariant_demo: Engine, stop: str) -> None:
    asked = {"grammar": of_schema(PERSON), "seed": 1}
    whole, _ = invariant_demo.answer("user = ", n_predict=400, **asked)
    for drafting in ({"n_draft_max": 0}, DRAFTED):
        text, done = invariant_demo.answer(
            "user = ", stop=(stop,), n_predict=400, **asked, **drafting
        )
        assert done.reason is StopReason.STOP
        assert text == whole.partition(stop)[0]


def test_slots_with_different_grammars_share_passes(demo: Engine) -> None:
    demo.said.clear()
    asked: dict[int, Grammar | None] = {
        1: of_schema(PERSON),
        2: of_schema(FUNCTIONS),
        3: None,
        4: CALL,
        5: of_schema({"type": "strng"}),
        6: of_schema(FUNCTIONS),
        7: of_schema(PERSON),
    }
    for request_id, grammar in asked.items():
        drafting = DRAFTED if request_id % 2 else {}
        n_predict = 40 if grammar is None else 400
        demo.loop.submit(
            request_id,
            request("value = ", grammar=grammar, seed=request_id, n_predict=n_predict, **drafting),
        )
    while demo.loop.is_busy:
        demo.loop.step()
        if any(isinstance(m, Tokens) and m.request_id == 7 for m in demo.said):
            demo.loop.cancel(7)
    ends = {m.request_id: m.event for m in demo.said if isinstance(m, Finished)}
    assert set(ends) == {1, 2, 3, 4, 5, 6}, "request 7 was cancelled within its grammar"
    refused = ends.pop(5)
    assert isinstance(refused, Failed)
    assert refused.kind is FailureKind.INVALID
    assert all(isinstance(end, Done) for end in ends.values())

    def text(request_id: int) -> str:
        said = [m.token for m in demo.said if isinstance(m, Tokens) and m.request_id == request_id]
        assert all(isinstance(token, Token) for token in said)
        return "".join(token.text for token in said)

    jsonschema.validate(json.loads(text(1)), PERSON)
    jsonschema.validate(json.loads(text(2)), FUNCTIONS)
    jsonschema.validate(json.loads(text(6)), FUNCTIONS)
    assert text(4).startswith("def ")
