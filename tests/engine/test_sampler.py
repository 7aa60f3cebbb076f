"""Filters compared with a naive implementation, samples with their distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import chdtrc  # type: ignore[import-untyped]

from specd.core import SamplingParams
from specd.engine.noise import negative_gumbel
from specd.engine.sampler import (
    CERTAIN,
    NO_TOKEN,
    CoupledSampler,
    Floats,
    NonFiniteLogits,
    Row,
    filter_candidates,
    logprobs,
    penalize,
    top_k,
)
from tests.fast import computes_long

rows = st.integers(0, 2**32 - 1).flatmap(
    lambda seed: st.sampled_from([5, 64, 700, 4992, 5003]).map(
        lambda n: np.random.default_rng(seed).normal(0, 3, n).astype(np.float32)
    )
)
tied_rows = st.lists(st.integers(-3, 3), min_size=2, max_size=900).map(
    lambda values: np.array(values, dtype=np.float32)
)


def softmax(logits: np.ndarray) -> Floats:
    weights: Floats = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    weights /= weights.sum()
    return weights


def llama_cpp_filters(row: Row, params: SamplingParams) -> dict[int, float]:
    """The same chain written naively, with full sorts: token → probability."""
    ids = sorted(range(len(row)), key=lambda i: (-row[i], i))
    if params.top_k > 0:
        ids = ids[: params.top_k]
    if params.typical_p < 1:
        probs = softmax(row[ids])
        entropy = -(probs * np.log(probs)).sum()
        order = sorted(range(len(ids)), key=lambda i: abs(-np.log(probs[i]) - entropy))
        kept, mass = [], 0.0
        for i in order:
            kept.append(i)
            mass += probs[i]
            if mass >= params.typical_p:
                break
        ids = [ids[i] for i in sorted(kept)]
    if params.top_p < 1:
        probs, mass, n = softmax(row[ids]), 0.0, 0
        for p in probs:
            n, mass = n + 1, mass + p
            if mass >= params.top_p:
                break
        ids = ids[:n]
    if params.min_p > 0:
        probs = softmax(row[ids])
        ids = [i for i, p in zip(ids, probs, strict=True) if p >= params.min_p * probs[0] - 1e-12]
    probs = softmax(row[ids].astype(np.float64) / params.temperature)
    return dict(zip(ids, probs, strict=True))


@given(st.one_of(rows, tied_rows), st.integers(-1, 200))
def test_top_k_equals_the_start_of_a_stable_sort(row: Row, k: int) -> None:
    full = sorted(range(len(row)), key=lambda i: (-row[i], i))
    ids, logits = top_k(row, k)
    assert list(ids) == (full[:k] if k > 0 else full)
    assert list(logits) == list(row[ids])


@given(st.one_of(rows, tied_rows), st.integers(1, 200), st.integers(1, 250))
def test_tokens_at_minus_infinity_are_no_candidates(row: Row, k: int, n_allowed: int) -> None:
    row = row.copy()
    row[: len(row) - n_allowed] = -np.inf
    allowed = [i for i in sorted(range(len(row)), key=lambda i: (-row[i], i)) if row[i] > -np.inf]
    ids, _ = top_k(row, k)
    assert list(ids)[: len(allowed)] == allowed[:k]
    assert len(ids) <= k
    if k < len(row):
        assert list(ids) == allowed[:k]


@given(
    rows,
    st.integers(0, 60),
    st.sampled_from([0.1, 0.5, 0.9, 0.99, 1.0]),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    st.sampled_from([0.3, 0.9, 1.0]),
)
def test_filters_equal_a_naive_implementation(
    row: Row, top_k: int, top_p: float, min_p: float, typical_p: float
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    ids, _ = filter_candidates(row, params)
    assert {int(i) for i in ids} == set(llama_cpp_filters(row, params))


PARAMS = [
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0),
    SamplingParams(temperature=0.5, top_k=8, min_p=0.1),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.95, typical_p=0.9),
]


@computes_long
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_drawn_tokens_follow_the_filtered_distribution(params: SamplingParams) -> None:
    """χ² over draws at many positions of fixed seeds: it passes or fails for ever."""
    row = np.random.default_rng(7).normal(0, 2, 50).astype(np.float32)
    expected = llama_cpp_filters(row, params)
    n_draws = 20_000
    counts = dict.fromkeys(expected, 0)
    for seed in range(n_draws // 200):
        sampler = CoupledSampler(replace(params, seed=seed))
        for position in range(200):
            counts[sampler.sample(row, (), position).token] += 1
    common = [i for i, p in expected.items() if p * n_draws >= 5]
    rare = [i for i in expected if i not in common]
    seen = [counts[i] for i in common] + [sum(counts[i] for i in rare)]
    wanted = [expected[i] * n_draws for i in common] + [sum(expected[i] for i in rare) * n_draws]
    if not rare:
        seen, wanted = seen[:-1], wanted[:-1]
    elif wanted[-1] < 5:
        seen[-2:], wanted[-2:] = [sum(seen[-2:])], [sum(wanted[-2:])]
    assert sum(seen) == pytest.approx(sum(wanted))
    statistic = sum((a - b) ** 2 / b for a, b in zip(seen, wanted, strict=True))
    # One in a hundred over the whole family of tests (Bonferroni).
    assert chdtrc(len(seen) - 1, statistic) > 0.01 / len(PARAMS)


@given(rows)
def test_temperature_zero_is_the_plain_argmax(row: Row) -> None:
    choice = CoupledSampler(SamplingParams(temperature=0)).sample(row, (), 3)
    second = np.partition(row, len(row) - 2)[len(row) - 2]
    assert choice.token == int(row.argmax())
    assert choice.margin == pytest.approx(float(row.max()) - float(second))


@given(
    rows,
    st.integers(1, 100),
    st.sampled_from([0.1, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05]),
    st.integers(0, 2**40),
)
def test_few_candidates_are_sampled_like_many(
    row: Row, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    choice = CoupledSampler(params).sample(row, (), 9)
    ids, logits = filter_candidates(row, params)
    scores = logits / params.temperature - negative_gumbel(seed, 9, ids)
    assert choice.token == ids[scores.argmax()]
    if len(ids) > 1:
        best, second = np.sort(scores)[:-3:-1]
        assert choice.margin == pytest.approx(best - second, abs=1e-9)


@given(rows, st.sampled_from([0.0, 0.8]), st.lists(st.integers(0, 4), max_size=5))
def test_token_equals_the_token_of_sample(row: Row, temperature: float, history: list[int]) -> None:
    sampler = CoupledSampler(SamplingParams(temperature=temperature, repeat_penalty=1.2))
    assert sampler.token(row, history, 4) == sampler.sample(row, history, 4).token


def test_a_single_candidate_is_certain() -> None:
    row = np.array([0, 5, 1], dtype=np.float32)
    choice = CoupledSampler(SamplingParams(top_k=1)).sample(row, (), 0)
    assert choice == (1, CERTAIN, NO_TOKEN)


@given(
    rows,
    st.lists(st.integers(0, 4), max_size=12),
    st.sampled_from([-1, 0, 3, 64]),
    st.sampled_from([1.0, 1.3]),
    st.sampled_from([0.0, 0.7]),
    st.sampled_from([0.0, 0.4]),
)
def test_penalties_equal_llama_cpps(
    row: Row,
    history: list[int],
    repeat_last_n: int,
    repeat: float,
    presence: float,
    frequency: float,
) -> None:
    params = SamplingParams(
        repeat_last_n=repeat_last_n,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    before = row.copy()
    expected = row.astype(np.float64)
    seen = history if repeat_last_n < 0 else history[max(len(history) - repeat_last_n, 0) :]
    for token in set(seen):
        logit = expected[token]
        logit = logit * repeat if logit <= 0 else logit / repeat
        expected[token] = logit - seen.count(token) * frequency - presence
    assert penalize(row, history, params) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert (row == before).all()


def test_logprobs_come_from_the_unfiltered_row() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))
    entry = logprobs(row, 1, 2, lambda token: bytes([97 + token]))
    assert entry.token == "b"
    assert entry.logprob == pytest.approx(np.log(0.25))
    assert [t.token for t in entry.top] == ["a", "b"]
    assert entry.top[0].logprob == pytest.approx(np.log(0.5))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("n_vocab", [40, 8192])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(),
        SamplingParams(top_k=0),
        SamplingParams(top_k=0, top_p=1.0),
        SamplingParams(typical_p=0.5),
        SamplingParams(top_k=500),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_row_of_non_finite_logits_is_refused(
    value: float, n_vocab: int, params: SamplingParams
) -> None:
    row = np.full(n_vocab, value, np.float32)
    with pytest.raises(NonFiniteLogits):
        CoupledSampler(params).token(row, (), 0)
