"""Sampling under a grammar: the best allowed token, the same with and without drafts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import Grammar, GrammarKind, SamplingParams, TokenId
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.state import GrammarState, GuidedSampler, NoAllowedToken
from specd.engine.grammar.translation import compile_matcher
from specd.engine.noise import negative_gumbel
from specd.engine.sampler import CERTAIN, CoupledSampler, Row
from tests.engine.grammar.vocabulary import ENDS, N_VOCAB, ByteVocabulary

TABLE = GrammarCompiler(ByteVocabulary()).table
SCHEMA = Grammar(
    kind=GrammarKind.JSON_SCHEMA,
    text='{"type": "object", "properties": {"name": {"type": "string"}, "a": {"type": "number"}},'
    ' "required": ["name", "a"], "additionalProperties": {"type": "boolean"}}',
)
START = compile_matcher(SCHEMA, TABLE.tokenizer)


def guided(params: SamplingParams) -> tuple[GuidedSampler, GrammarState]:
    state = GrammarState(START, TABLE)
    return GuidedSampler(CoupledSampler(params), state), state


def row_after(history: list[TokenId], salt: int = 0, n_vocab: int = N_VOCAB) -> Row:
    """Return logits that depend only on the last tokens, as a model's row."""
    key = hash((salt, *history[-3:])) & 0xFFFFFFFF
    return np.random.default_rng(key).normal(0, 3, n_vocab).astype(np.float32)


parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    top_k=st.sampled_from([0, 1, 5, 40, 200]),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    typical_p=st.sampled_from([0.9, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.2]),
    seed=st.integers(0, 2**32),
)


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.8, 1.5]), st.integers(1, 25))
def test_without_filters_the_best_allowed_score_wins(
    seed: int, temperature: float, n_tokens: int
) -> None:
    sampler, state = guided(SamplingParams(temperature=temperature, top_k=0, top_p=1, seed=seed))
    said: list[TokenId] = []
    for position in range(n_tokens):
        if state.is_finished:
            break
        row, allowed = row_after(said), np.flatnonzero(state.mask())
        scores = row[allowed].astype(np.float64)
        if temperature:
            scores = scores / temperature - negative_gumbel(seed, position, allowed)
        said.append(sampler.token(row, said, position))
        assert said[-1] == allowed[scores.argmax()]


@given(parameters, st.integers(0, 5), st.integers(1, 6))
def test_drafts_do_not_change_the_tokens(params: SamplingParams, salt: int, n: int) -> None:
    sampler, _ = guided(params)
    plain: list[TokenId] = []
    while len(plain) < 30 and (not plain or plain[-1] not in ENDS):
        plain.append(sampler.token(row_after(plain), plain, len(plain)))

    sampler, state = guided(params)
    said: list[TokenId] = []
    n_accepted = 0
    while len(said) < len(plain):
        draft: list[TokenId] = []
        for depth in range(n):
            history = [*said, *draft]
            # A drafter that knows fewer tokens than the target, and other ones if it is bad.
            row = row_after(history, salt)[: N_VOCAB - 1]
            choice = sampler.sample(row, history, len(said) + depth)
            assert 0 <= choice.margin <= CERTAIN
            draft.append(choice.token)
            if choice.token in ENDS:
                break
        for guess in [*draft, None]:
            said.append(sampler.token(row_after(said), said, len(said)))
            if guess != said[-1] or said[-1] in ENDS:
                break
            n_accepted += 1
        assert state.n_accepted == len(said)
    assert said[: len(plain)] == plain
    assert n_accepted > 0 or salt, "a drafter that is the target guesses well"


def test_a_token_that_is_allowed_costs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, state = guided(SamplingParams(temperature=0))
    monkeypatch.setattr(GrammarState, "mask", None)
    row = np.zeros(N_VOCAB, dtype=np.float32)
    row[ord("{")] = 9
    assert sampler.token(row, [], 0) == ord("{")
    assert state.n_accepted == 1


def test_a_row_without_an_allowed_token_raises() -> None:
    row = np.full(N_VOCAB, -np.inf, dtype=np.float32)
    row[ord("x")] = 1
    sampler, state = guided(SamplingParams())
    with pytest.raises(NoAllowedToken, match="has no token"):
        sampler.token(row, [], 0)
    # A drafter guesses on, and what it guesses can only be wrong.
    assert sampler.sample(row, [], 0).token == ord("x")
    assert sampler.sample(row, [ord("x")], 1).token == ord("x")
    assert state.n_accepted == 0
    row[ord("{")] = 0
    assert sampler.token(row, [], 0) == ord("{")
