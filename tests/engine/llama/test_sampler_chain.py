"""The sampler's stages compared with llama.cpp's own, on the same rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from specd.core import SamplerChain, SamplerStage, SamplingParams
from specd.engine.sampler import Row
from specd.engine.sampler_chain import ChainSampler
from tests.engine.llama.conftest import TARGET

S = SamplerStage
PARAMS = SamplingParams(
    temperature=0.7,
    top_k=30,
    top_p=0.9,
    min_p=0.05,
    typical_p=0.8,
    repeat_penalty=1.3,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    repeat_last_n=20,
)
CHAIN = SamplerChain(
    top_n_sigma=1.5,
    xtc_probability=1.0,  # always: their draws differ
    xtc_threshold=0.08,
    dynatemp_range=0.4,
    dynatemp_exponent=0.8,
    dry_multiplier=0.8,
    dry_allowed_length=1,
    dry_penalty_last_n=40,
    logit_bias=((3, 2.5), (11, -1.0)),
)
rows = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([64, 900])).map(
    lambda drawn: np.random.default_rng(drawn[0]).normal(0, 3, drawn[1]).astype(np.float32)
)
histories = st.lists(st.integers(0, 5), max_size=60)


@pytest.fixture(scope="module")
def vocab() -> Iterator[Any]:
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(TARGET).encode(), params)
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


def stage_of_llama_cpp(stage: SamplerStage, n_vocab: int, min_keep: int, vocab: Any) -> Any:
    p, c = PARAMS, CHAIN
    make: dict[SamplerStage, Callable[[], Any]] = {
        S.PENALTIES: lambda: llama_cpp.llama_sampler_init_penalties(
            n_vocab, p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
        ),
        S.DRY: lambda: llama_cpp.llama_sampler_init_dry(
            vocab,
            c.dry_multiplier,
            c.dry_base,
            c.dry_allowed_length,
            c.dry_penalty_last_n,
            (ctypes.c_char_p * 0)(),
            0,
        ),
        S.TOP_N_SIGMA: lambda: llama_cpp.llama_sampler_init_top_n_sigma(c.top_n_sigma),
        S.TOP_K: lambda: llama_cpp.llama_sampler_init_top_k(p.top_k),
        S.TYPICAL_P: lambda: llama_cpp.llama_sampler_init_typical(p.typical_p, min_keep),
        S.TOP_P: lambda: llama_cpp.llama_sampler_init_top_p(p.top_p, min_keep),
        S.MIN_P: lambda: llama_cpp.llama_sampler_init_min_p(p.min_p, min_keep),
        S.XTC: lambda: llama_cpp.llama_sampler_init_xtc(1.0, c.xtc_threshold, min_keep, 0),
        S.TEMPERATURE: lambda: llama_cpp.llama_sampler_init_temp_ext(
            p.temperature, c.dynatemp_range, c.dynatemp_exponent
        ),
    }
    return make[stage]()


def distribution_of_llama_cpp(
    row: Row, history: list[int], stages: tuple[SamplerStage, ...], min_keep: int, vocab: Any
) -> dict[int, float]:
    """Return token → probability after a chain of llama.cpp's samplers."""
    n = len(row)
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    biases = (llama_cpp.llama_logit_bias * len(CHAIN.logit_bias))(*CHAIN.logit_bias)
    bias = llama_cpp.llama_sampler_init_logit_bias(n, len(biases), biases)
    llama_cpp.llama_sampler_chain_add(chain, bias)
    for stage in stages:
        made = stage_of_llama_cpp(stage, n, min_keep, vocab)
        llama_cpp.llama_sampler_chain_add(chain, made)
    for token in history:
        llama_cpp.llama_sampler_accept(chain, token)
    data = (llama_cpp.llama_token_data * n)(*((i, float(row[i]), 0.0) for i in range(n)))
    array = llama_cpp.llama_token_data_array(data=data, size=n, selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    left = [array.data[i] for i in range(array.size)]
    logits = np.array([one.logit for one in left], dtype=np.float64)
    ids = [one.id for one in left]
    llama_cpp.llama_sampler_free(chain)
    weights = np.exp(logits - logits.max())
    probs = weights / weights.sum()
    return {token: p for token, p in zip(ids, probs, strict=True) if p > 0}


@settings(max_examples=150, deadline=None)
@given(
    row=rows,
    history=histories,
    stages=st.permutations(list(SamplerStage)).flatmap(
        lambda order: st.integers(0, len(order)).map(lambda n: tuple(order[:n]))
    ),
    min_keep=st.sampled_from([0, 4]),
)
def test_any_order_gives_llama_cpps_distribution(
    vocab: Any,
    row: Row,
    history: list[int],
    stages: tuple[SamplerStage, ...],
    min_keep: int,
) -> None:
    # In llama.cpp, typical_p computes NaN if a candidate has the logit −inf.
    before_typical = stages[: stages.index(S.TYPICAL_P)] if S.TYPICAL_P in stages else ()
    assume(S.TOP_N_SIGMA not in before_typical)
    note(stages)
    expected = distribution_of_llama_cpp(row, history, stages, min_keep, vocab)
    chain = replace(CHAIN, stages=stages, min_keep=min_keep)
    ids, logits, _ = ChainSampler(PARAMS, chain).candidates(row, history, 0)
    weights = np.exp(logits - logits.max())
    found = dict(zip(ids.tolist(), weights / weights.sum(), strict=True))
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)
