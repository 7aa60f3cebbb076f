"""Test that workloads and the order of runs favour no mode."""

from __future__ import annotations

import difflib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench.schedule import order
from specd.bench.workload import WORKLOADS, Form, Prompt, load_workload
from specd.errors import InvalidRequest

COUNTS = st.integers(1, 40)
ALL = [load_workload(name) for name in WORKLOADS]


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


@pytest.mark.parametrize("workload", ALL, ids=WORKLOADS)
def test_a_workload_is_large_enough_to_be_repeated(workload: object) -> None:
    assert isinstance(workload, type(ALL[0]))
    assert len(workload.prompts) >= (24 if workload.name == "code_completion" else 12)
    assert len(workload.warm_up) >= 2
    assert workload.title


def test_no_two_prompts_of_all_workloads_begin_alike() -> None:
    texts = sorted(
        prompt.text for workload in ALL for prompt in (*workload.prompts, *workload.warm_up)
    )
    for one, other in itertools.pairwise(texts):
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        assert len(list(same)) <= 50, one


def test_an_edit_begins_with_the_changed_first_lines_of_the_given_text() -> None:
    for prompt in load_workload("edit").prompts:
        _, _, given = prompt.text.partition("\n\n")
        start = given[: len(prompt.begins)]
        likeness = difflib.SequenceMatcher(None, start, prompt.begins, autojunk=False).ratio()
        assert likeness > 0.6, prompt.begins
        assert len(given) > 3 * len(prompt.begins)


def test_raw_texts_are_continued_and_the_others_are_turns_of_a_chat() -> None:
    raw = {workload.name for workload in ALL if workload.form is Form.RAW}
    assert raw == {"code_completion", "hostile"}


def test_a_prompt_is_a_text_or_a_text_with_the_answers_beginning() -> None:
    assert Prompt.read("a") == Prompt("a")
    assert Prompt.read({"text": "a", "begins": "b"}) == Prompt("a", "b")


def test_more_prompts_than_there_are_is_a_clear_error() -> None:
    workload = load_workload("code_completion")
    assert workload.part(2, 3).prompts == workload.prompts[2:5]
    with pytest.raises(InvalidRequest, match="code_completion has 24 prompts, not 30"):
        workload.part(20, 10)


def test_an_unknown_workload_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"'poems': there are code_completion, .*, hostile"):
        load_workload("poems")
