"""The shape of the large model: as large as asked for, and able to hold the small one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench.llama_shape import LlamaShape, scaled

DEMO = LlamaShape(
    n_embd=256, n_layers=6, n_ff=640, n_heads=4, n_kv_heads=4, head_dim=64, n_vocab=2048
)


@st.composite
def shapes(draw: st.DrawFn) -> LlamaShape:
    head_dim = draw(st.sampled_from([8, 16, 32, 64, 128]))
    group = draw(st.sampled_from([1, 2, 4]))
    n_kv_heads = draw(st.sampled_from([4, 8]))
    return LlamaShape(
        n_embd=head_dim * group * n_kv_heads,
        n_layers=draw(st.integers(1, 8)),
        n_ff=32 * draw(st.integers(1, 40)),
        n_heads=group * n_kv_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_vocab=draw(st.sampled_from([300, 2048, 32000])),
        has_output=draw(st.booleans()),
    )


@given(shapes(), st.integers(1, 10_000_000_000))
def test_the_large_model_holds_the_small_one_in_whole_blocks(small: LlamaShape, n: int) -> None:
    large = scaled(small, n)
    assert large.n_embd >= small.n_embd
    assert large.n_ff >= small.n_ff
    assert large.n_layers >= small.n_layers
    assert large.n_kv_heads >= small.n_kv_heads
    assert large.n_embd % 32 == large.n_ff % 32 == large.n_heads * large.head_dim % 32 == 0


@given(shapes(), st.integers(1, 10_000_000_000))
def test_heads_keep_their_size_and_their_grouping(small: LlamaShape, n: int) -> None:
    large = scaled(small, n)
    assert large.head_dim == small.head_dim
    assert large.n_heads * small.n_kv_heads == small.n_heads * large.n_kv_heads


@given(st.integers(100_000_000, 20_000_000_000))
def test_the_demo_target_grows_to_the_size_asked_for(n: int) -> None:
    assert abs(scaled(DEMO, n).n_parameters - n) < 0.05 * n


@pytest.mark.parametrize(
    "n_parameters,n_embd,n_layers,label",
    [
        (
            500_000_000,
            1536,
            range(14, 25),
            "50.M",
        ),  # Qwen2.5 0.5B: 896 x 24, Llama 3.2 1B: 2048 x 16
        (10**9, 2048, range(16, 25), "1B"),  # TinyLlama: 2048 x 22
        (3 * 10**9, 2816, range(26, 37), "3B"),  # Llama 3.2 3B: 3072 x 28
        (8 * 10**9, 4096, range(32, 41), "8B"),  # Llama 3.1 8B: 4096 x 32
    ],
)
def test_each_size_has_the_proportions_of_its_family(
    n_parameters: int, n_embd: int, n_layers: range, label: str
) -> None:
    large = scaled(DEMO, n_parameters)
    assert large.n_embd == n_embd
    assert large.n_layers in n_layers
    assert 2.5 < large.n_ff / large.n_embd < 4
    assert large.n_heads * large.head_dim == large.n_embd
    assert large.n_embd % 256 == large.n_ff % 256 == 0
    assert abs(large.n_parameters - n_parameters) < 0.02 * n_parameters
    assert re.fullmatch(label, large.label)


def test_copies_of_a_model_are_as_wide_as_they_are_many() -> None:
    three = DEMO.copied(3)
    assert (three.n_embd, three.n_ff, three.n_heads, three.n_kv_heads) == (768, 1920, 12, 12)
    assert (three.n_layers, three.head_dim, three.n_vocab) == (6, 64, 2048)


def test_a_billion_parameters_look_like_a_model_of_that_size() -> None:
    large = scaled(DEMO, 10**9)
    assert (large.n_embd, large.n_heads, large.label) == (2048, 32, "1B")
    assert 16 <= large.n_layers <= 24


def test_the_parameters_of_the_demo_target_are_counted() -> None:
    assert DEMO.n_parameters == 5_049_600
