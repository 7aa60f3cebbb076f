"""Stages in any order: equal to the usual sampler in the usual order, and lossless."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import SamplerChain, SamplerStage, SamplingParams, SpeculationMode
from specd.engine.dry import dry_penalties
from specd.engine.sampler import CERTAIN, CoupledSampler, NonFiniteLogits, Row
from specd.engine.sampler_chain import ChainSampler
from tests.engine.test_loop import Engine, answer

rows = st.integers(0, 2**32 - 1).flatmap(
    lambda seed: st.sampled_from([5, 64, 700]).map(
        lambda n: np.random.default_rng(seed).normal(0, 3, n).astype(np.float32)
    )
)
chains = st.builds(
    SamplerChain,
    stages=st.permutations(list(SamplerStage)).flatmap(
        lambda stages: st.integers(0, len(stages)).map(lambda n: tuple(stages[:n]))
    ),
    min_keep=st.integers(0, 5),
    top_n_sigma=st.sampled_from([-1.0, 0.5, 2.0]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.05, 0.3]),
    dynatemp_range=st.sampled_from([0.0, 0.5, 2.0]),
    dynatemp_exponent=st.sampled_from([0.5, 1.0]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
    dry_allowed_length=st.integers(0, 3),
    dry_penalty_last_n=st.sampled_from([0, 8, 64]),
    dry_breakers=st.sampled_from([(), ((5, ()),), ((5, (6,)), (7, ()))]),
    logit_bias=st.sampled_from([(), ((1, 4.0), (2, -math.inf), (10**6, 1.0), (-1, 1.0))]),
)


@given(
    rows,
    st.sampled_from([0.0, 0.8]),
    st.sampled_from([0, 7, 300]),
    st.sampled_from([0.6, 1.0]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([1.0, 1.3]),
    st.lists(st.integers(-2, 4), max_size=8),
)
def test_the_usual_order_gives_the_token_of_the_usual_sampler(
    row: Row,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    history: list[int],
) -> None:
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=penalty,
        presence_penalty=0.1,
    )
    chain = ChainSampler(params, SamplerChain())
    assert chain.sample(row, history, 3).token == CoupledSampler(params).token(row, history, 3)
    assert chain.token(row, history, 3) == chain.sample(row, history, 3).token


@settings(max_examples=60, deadline=None)
@given(
    chain=chains,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    agreement=st.sampled_from([0.5, 0.9, 1.0]),
    n_draft=st.integers(1, 16),
)
def test_text_does_not_depend_on_speculation_with_any_chain(
    *, chain: SamplerChain, seed: int, temperature: float, agreement: float, n_draft: int
) -> None:
    sampling = SamplingParams(
        seed=seed, temperature=temperature, top_k=20, repeat_penalty=1.1, chain=chain
    )
    request = {"sampling": sampling, "want_context": True, "n_predict": 60}
    text, done = answer(Engine(agreement=None), **request)
    fixed = {"n_draft_max": n_draft, "mode": SpeculationMode.FIXED}
    drafted_text, drafted = answer(Engine(agreement=agreement), **fixed, **request)
    assert drafted_text == text
    assert drafted.context == done.context


def test_a_draft_is_accepted_under_every_stage() -> None:
    """The drafter samples by the same stages; only its padded vocabulary differs."""
    chain = SamplerChain(
        top_n_sigma=2.0, xtc_probability=0.5, dynatemp_range=0.5, dry_multiplier=0.8
    )
    engine = Engine(agreement=1.0, eog_bias=-50)
    fixed = {"n_draft_max": 4, "mode": SpeculationMode.FIXED}
    _, done = answer(engine, sampling=SamplingParams(chain=chain), n_predict=60, **fixed)
    assert done.speculation.draft_n_accepted > 0.7 * done.speculation.draft_n > 0


def test_xtc_applies_to_its_share_of_the_tokens() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    chain = SamplerChain(xtc_probability=0.25, xtc_threshold=0.2)
    sampler = ChainSampler(SamplingParams(top_k=0, top_p=1.0, temperature=1.0), chain)
    seen = Counter(len(sampler.candidates(row, (), at).ids) for at in range(4000))
    assert set(seen) == {3, 4}, "of the two likely tokens only the less likely one is left"
    assert seen[3] / 4000 == pytest.approx(0.25, abs=0.03)


def test_a_forbidden_token_is_never_a_candidate() -> None:
    row = np.array([9.0, 1.0, 0.0], dtype=np.float32)
    chain = SamplerChain(logit_bias=((0, -math.inf), (7, 3.0)))
    for temperature in (0.0, 1.0):
        sampler = ChainSampler(SamplingParams(temperature=temperature), chain)
        assert 0 not in sampler.candidates(row, (), 0).ids


def test_a_row_without_a_candidate_is_refused() -> None:
    row = np.zeros(2, dtype=np.float32)
    chain = SamplerChain(logit_bias=((0, -math.inf), (1, -math.inf)))
    with pytest.raises(NonFiniteLogits):
        ChainSampler(SamplingParams(), chain).token(row, (), 0)
    with pytest.raises(NonFiniteLogits):
        ChainSampler(SamplingParams(), SamplerChain()).token(row * np.nan, (), 0)


def test_a_single_candidate_is_certain() -> None:
    row = np.array([1.0, 2.0], dtype=np.float32)
    sampler = ChainSampler(SamplingParams(temperature=0.0), SamplerChain())
    assert sampler.sample(row, (), 0).margin == CERTAIN


@pytest.mark.parametrize(
    "history,expected",
    [
        ((1, 2, 3, 9, 1, 2, 3), {9: 1.5}),
        ((1, 2, 3, 9, 8, 2, 3), {9: 1.0}),
        ((1, 2, 3, 4, 5, 6, 7), {}),
        ((1, 2, -4, 3, 9, 1, 2, 3), {9: 1.5}),  # images are not repeated text
    ],
)
def test_dry_lowers_the_token_that_would_continue_a_repetition(
    history: tuple[int, ...], expected: dict[int, float]
) -> None:
    chain = SamplerChain(dry_multiplier=1.0, dry_base=1.5)
    assert dry_penalties(history, chain) == pytest.approx(expected)


def test_dry_stops_at_a_breaker() -> None:
    chain = SamplerChain(dry_multiplier=1.0, dry_base=1.5)
    history = (1, 2, 3, 9, 1, 2, 3)
    assert dry_penalties(history, replace(chain, dry_breakers=((2, ()),))) == {}
    assert dry_penalties(history, replace(chain, dry_breakers=((2, (3,)),))) == {}
    assert dry_penalties(history, replace(chain, dry_breakers=((9, ()),))) == {}
    assert dry_penalties(history, replace(chain, dry_breakers=((2, (9,)),))) == {9: 1.5}
