"""Prompts that flatter nobody, in an order that favours no mode."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench.workload import order, python_workload
from specd.errors import InvalidRequest

COUNTS = st.integers(1, 40)


@given(COUNTS, st.integers(1, 12))
def test_every_mode_meets_every_prompt_once(n_prompts: int, n_modes: int) -> None:
    met = list(order(n_prompts, n_modes))
    assert sorted(met) == list(itertools.product(range(n_prompts), range(n_modes)))


@given(st.integers(2, 40), st.integers(1, 12))
def test_consecutive_requests_never_share_a_prompt(n_prompts: int, n_modes: int) -> None:
    prompts = [prompt for prompt, _ in order(n_prompts, n_modes)]
    assert all(a != b for a, b in itertools.pairwise(prompts))


@given(COUNTS, st.integers(1, 12))
def test_the_modes_of_a_prompt_run_within_a_short_time(n_prompts: int, n_modes: int) -> None:
    prompts = [prompt for prompt, _ in order(n_prompts, n_modes)]
    for prompt in range(n_prompts):
        places = [i for i, p in enumerate(prompts) if p == prompt]
        assert places[-1] - places[0] <= 3 * n_modes


def test_the_mode_that_goes_first_changes_from_group_to_group() -> None:
    firsts = {mode for i, (_, mode) in enumerate(order(8, 10)) if i % 20 == 0}
    assert firsts == {0, 2, 5, 7}


def test_no_two_prompts_begin_alike() -> None:
    workload = python_workload()
    texts = [*workload.prompts, *workload.warm_up]
    assert len({text.strip()[:12] for text in texts}) == len(texts)
    assert len(workload.prompts) >= 24
    assert len(workload.warm_up) >= 2


def test_more_prompts_than_there_are_is_a_clear_error() -> None:
    assert len(python_workload().first(3).prompts) == 3
    with pytest.raises(InvalidRequest, match="has 24 prompts, not 99"):
        python_workload().first(99)
