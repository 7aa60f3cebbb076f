"""Test the check of draws against probabilities."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.targets.sampling_check import chi_square, filtered, p_value, token_ids
from specd.bench.subject import demo_subject
from specd.core import SamplingParams

PROBS = {1: 0.5, 2: 0.3, 3: 0.15, 4: 0.04, 5: 0.01}


def drawn(probs: dict[int, float], n: int, seed: int = 1) -> Counter[int]:
    chance = random.Random(seed)
    return Counter(chance.choices([*probs], [*probs.values()], k=n))


@given(
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30),
    st.floats(0.1, 2.0),
    st.integers(1, 40),
    st.floats(0.05, 1.0),
)
def test_filtered_rows_are_distributions_in_the_same_order(
    weights: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    row = np.log(np.sort(np.array(weights))[::-1] / sum(weights))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    kept = filtered(row, params)
    assert 1 <= len(kept) <= min(top_k, len(weights))
    assert kept.sum() == pytest.approx(1.0)
    assert all(a >= b * (1 - 1e-9) for a, b in pairwise(kept))


def test_filters_and_temperature_are_what_their_definitions_say() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.7)
    # 4/9 and 3/9 together exceed 0.7, so top-p drops 2/9; squared, their ratio is 16 to 9.
    assert filtered(row, params) == pytest.approx([16 / 25, 9 / 25])


def test_true_draws_pass_the_test_and_biased_ones_fail() -> None:
    fair = p_value(*chi_square(drawn(PROBS, 5000), PROBS))
    biased = p_value(*chi_square(drawn({**PROBS, 2: 0.36, 1: 0.44}, 5000), PROBS))
    assert fair > 0.01
    assert biased < 0.0001


def test_true_draws_are_rejected_at_the_expected_rate() -> None:
    ps = [p_value(*chi_square(drawn(PROBS, 300, seed), PROBS)) for seed in range(200)]
    assert sum(p < 0.1 for p in ps) < 40
    assert sum(p > 0.5 for p in ps) > 60


def test_rare_tokens_share_a_cell() -> None:
    counts = Counter({1: 50, 2: 30, 3: 15, 4: 4, 5: 1})
    statistic, n_free = chi_square(counts, PROBS)
    assert n_free == 3  # 4 and 5 together are expected five times
    assert statistic == pytest.approx(0.0)


def test_a_single_cell_says_nothing() -> None:
    assert chi_square(Counter({1: 40}), {1: 1.0}) == (0.0, 0)
    assert p_value(0.0, 0) == 1.0


def test_tokens_are_found_by_their_bytes() -> None:
    ids = token_ids(demo_subject().target)
    assert len(ids) > 1900
    assert {b"\n", b" ", b"def", bytes([0xE2])} <= ids.keys()
    assert len(set(ids.values())) == len(ids)
