"""Walks through grammars: masks agree with single checks, and a rollback restores the state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import Grammar, GrammarKind, TokenId
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.state import GrammarState, NoAllowedToken
from specd.engine.grammar.translation import compile_matcher
from tests.engine.grammar.vocabulary import CONTROL, ENDS, N_VOCAB, PIECES, ByteVocabulary

COMPILER = GrammarCompiler(ByteVocabulary())


def begin(grammar: Grammar, compiler: GrammarCompiler = COMPILER) -> GrammarState:
    """Return the grammar's first state; skip the sandbox, which has its own test."""
    return GrammarState(compile_matcher(grammar, compiler.table.tokenizer), compiler.table)


def of_schema(schema: object) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))


def gbnf(text: str) -> Grammar:
    return Grammar(kind=GrammarKind.GBNF, text=text)


def walk(state: GrammarState, random: Random, n_most: int) -> list[TokenId]:
    """Return at most n_most tokens, each allowed by the grammar in its place."""
    tokens: list[TokenId] = []
    while len(tokens) < n_most and not state.is_finished:
        tokens.append(int(random.choice(np.flatnonzero(state.mask()))))
        state.accept(tokens[-1])
    return tokens


def text_of(tokens: Iterable[TokenId]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode()


#: Small enough that a random walk ends.
scalars = st.sampled_from(
    [
        {"enum": ["red", "é\n", 12, None, [1, {"a": False}]]},
        {"const": {"name": ["😀", '"']}},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": -3, "maximum": 120},
        {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.5},
        {"type": "string", "maxLength": 3},
        {"type": "string", "pattern": "^[a-c]{2}[0-9é]?$"},
        {"type": "string", "format": "date"},
    ]
)
names = st.sampled_from(["name", "a", "é", 'q"uote', "new\nline", ""])


def objects(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(names, values, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties) or [""])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & properties.keys()),
                "additionalProperties": False,
            }
        )
    )


def arrays(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return values.map(lambda items: {"type": "array", "items": items, "maxItems": 2})


schemas = st.recursive(
    scalars,
    lambda values: st.one_of(
        objects(values),
        arrays(values),
        st.lists(values, min_size=1, max_size=3).map(lambda anyone: {"anyOf": anyone}),
    ),
    max_leaves=5,
)
grammars = st.one_of(
    schemas.map(of_schema),
    st.sampled_from(
        [
            Grammar(kind=GrammarKind.JSON),
            Grammar(kind=GrammarKind.REGEX, text="(na|name)+é?[0-9]{1,3}"),
            gbnf('root ::= item+\nitem ::= ("a" | "na") "=" [0-9]+ "\\n"'),
            gbnf('root ::= "(" root ")" | "😀"?'),
        ]
    ),
)


@given(grammars, st.integers(0, 2**32), st.integers(0, 30))
def test_a_mask_equals_the_check_of_every_token(grammar: Grammar, seed: int, n: int) -> None:
    state = begin(grammar)
    walk(state, Random(seed), n)
    if not state.is_finished:
        assert state.mask().tolist() == [state.allows(token) for token in range(N_VOCAB)]


@given(grammars, st.integers(0, 2**32), st.integers(1, 40), st.data())
def test_a_rollback_restores_the_state(
    grammar: Grammar, seed: int, n_most: int, data: st.DataObject
) -> None:
    state = begin(grammar)
    tokens = walk(state, Random(seed), n_most)
    n_back = data.draw(st.integers(0, len(tokens)))
    state.rollback(n_back)
    fresh = begin(grammar)
    for token in tokens[: len(tokens) - n_back]:
        fresh.accept(token)
    assert (state.n_accepted, state.is_finished) == (fresh.n_accepted, fresh.is_finished)
    if not fresh.is_finished:
        assert (state.mask() == fresh.mask()).all()
        # And onwards again, where the first walk had gone.
        assert all(state.allows(token) for token in tokens[state.n_accepted :][:1])


@given(schemas, st.integers(0, 2**32))
def test_an_answer_that_ends_fits_its_schema(schema: dict[str, Any], seed: int) -> None:
    state = begin(of_schema(schema))
    tokens = walk(state, Random(seed), 2000)
    assert state.is_finished
    jsonschema.validate(
        json.loads(text_of(tokens)), schema, format_checker=jsonschema.FormatChecker()
    )


@given(st.integers(0, 2**32))
def test_any_json_object_is_allowed(seed: int) -> None:
    state = begin(Grammar(kind=GrammarKind.JSON))
    random = Random(seed)
    tokens = walk(state, random, 60)
    closing = [ord(c) for c in '"}]0ea:,1']
    while not state.is_finished and len(tokens) < 1000:
        # Close whatever is open, as far as one sign can tell.
        wanted = [token for token in (*ENDS, *closing) if state.allows(token)]
        tokens.append(wanted[0] if wanted else int(random.choice(np.flatnonzero(state.mask()))))
        state.accept(tokens[-1])
    assert state.is_finished
    assert isinstance(json.loads(text_of(tokens)), dict)


def test_end_tokens_are_allowed_if_the_answer_may_end() -> None:
    state = begin(Grammar(kind=GrammarKind.REGEX, text="ab?"))
    assert not any(state.allows(end) for end in ENDS)
    state.accept(ord("a"))
    assert set(np.flatnonzero(state.mask())) == {ord("b"), *ENDS}
    state.accept(ord("b"))
    assert set(np.flatnonzero(state.mask())) == set(ENDS), "it must be over now"
    state.accept(ENDS[1])
    assert state.is_finished
    assert not any(state.allows(token) for token in range(N_VOCAB))
    with pytest.raises(NoAllowedToken, match="already over"):
        state.mask()
    state.rollback(2)
    assert not state.is_finished
    assert set(np.flatnonzero(state.mask())) == {ord("b"), *ENDS}


@pytest.mark.parametrize("token", [CONTROL, -1, N_VOCAB])
def test_tokens_without_bytes_are_never_allowed(token: TokenId) -> None:
    assert not begin(Grammar(kind=GrammarKind.REGEX, text=".*")).allows(token)


def test_a_rollback_recovers_from_a_missing_token() -> None:
    lacking = GrammarCompiler(ByteVocabulary(without="é".encode()))
    state = begin(Grammar(kind=GrammarKind.REGEX, text="a(é|b+c)"), lacking)
    for token in b"abb":
        state.accept(token)
    state.rollback(2)
    assert np.flatnonzero(state.mask()).tolist() == [ord("b")]
    state = begin(Grammar(kind=GrammarKind.REGEX, text="aé"), lacking)
    state.accept(ord("a"))
    for _ in range(2):
        with pytest.raises(NoAllowedToken):
            state.mask()
        state.rollback(0)
    state.rollback(1)
    assert state.allows(ord("a"))


def test_a_rollback_recovers_from_an_exceeded_limit() -> None:
    names = {f"p{i}": {"type": "string"} for i in range(800)}
    wide = {"type": "object", "properties": names, "additionalProperties": False}
    state = begin(of_schema({"type": "array", "items": wide}))
    state.accept(ord("["))
    with pytest.raises(NoAllowedToken, match=r"cannot go on: .*items"):
        state.accept(ord("{"))
    for ask in (state.mask, lambda: state.allows(ord("]"))):
        with pytest.raises(NoAllowedToken, match="cannot go on"):
            ask()
    state.rollback(0)
    assert state.allows(ord("]"))
