"""Shared noise: uniform, independent, and a function of its three arguments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specd.engine.noise import gumbel, negative_gumbel, stream_key, uniform

IDS = np.arange(4096)


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6))
def test_uniforms_are_within_the_open_interval(seed: int, position: int) -> None:
    drawn = uniform(seed, position, IDS)
    assert (drawn > 0).all()
    assert (drawn < 1).all()


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.permutations(range(64)))
def test_noise_of_a_token_does_not_depend_on_other_tokens(
    seed: int, position: int, order: list[int]
) -> None:
    ids = np.array(order)
    assert (negative_gumbel(seed, position, ids) == negative_gumbel(seed, position, IDS)[ids]).all()


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.integers(0, 300_000))
def test_gumbel_equals_negative_gumbel_of_one_token(seed: int, position: int, token: int) -> None:
    together = -negative_gumbel(seed, position, np.array([token]))[0]
    assert abs(gumbel(stream_key(seed, position), token) - together) < 1e-12


def test_noise_has_the_moments_of_a_standard_gumbel() -> None:
    drawn = -np.concatenate([negative_gumbel(seed, seed * 7, IDS) for seed in range(64)])
    assert abs(drawn.mean() - np.euler_gamma) < 0.01
    assert abs(drawn.var() - np.pi**2 / 6) < 0.02


def test_neighbouring_seeds_positions_and_tokens_are_uncorrelated() -> None:
    base = np.stack([uniform(seed, 0, IDS) for seed in range(32)])
    for other in (
        np.stack([uniform(seed + 1, 0, IDS) for seed in range(32)]),
        np.stack([uniform(seed, 1, IDS) for seed in range(32)]),
        np.stack([uniform(seed, 0, IDS + 1) for seed in range(32)]),
    ):
        correlation = np.corrcoef(base.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 0.02


def test_seed_zero_gives_distinct_noise() -> None:
    assert stream_key(0, 0) != stream_key(1, 0)
    assert len({stream_key(0, position) for position in range(1000)}) == 1000
