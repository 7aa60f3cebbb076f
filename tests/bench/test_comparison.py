"""Test the figures of one workload: medians, ranges and comparisons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench.comparison import compare
from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN
from specd.bench.runs import MedianRange
from tests.bench.report_builders import K1, K3, N3, run, runs


def test_a_ratio_is_taken_prompt_by_prompt() -> None:
    (figures,) = compare(runs({"plain": [10, 20, 40], "auto": [30, 20, 60]}))
    auto = figures.of_mode("auto")
    assert auto is not None
    ratio = auto.ratio
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((1.5, 1.0, 3.0))
    assert auto.tokens_per_s.median == pytest.approx(30)
    assert figures.auto_to_plain == ratio


def test_all_tokens_over_all_seconds_is_no_mean_of_speeds() -> None:
    (figures,) = compare(runs({"plain": [10, 40]}))
    assert figures.modes[0].total_per_s == pytest.approx(16)


def test_auto_is_compared_with_the_best_length_of_the_workload_and_with_plain() -> None:
    speeds = {"plain": [10, 10], "k = 1": [20, 12], "k = 3": [15, 16], "auto": [20, 15]}
    (figures,) = compare(runs(speeds))
    assert figures.best_fixed == figures.hindsight == K1
    assert figures.auto_to_hindsight is not None
    assert figures.auto_to_hindsight.median == pytest.approx((1.0 + 15 / 12) / 2)
    assert figures.auto_to_best_fixed == figures.auto_to_hindsight


def test_plain_can_be_the_best_in_hindsight() -> None:
    (figures,) = compare(runs({"plain": [10, 10], "k = 1": [9, 8], "auto": [9.9, 9.9]}))
    assert (figures.best_fixed, figures.hindsight) == (K1, PLAIN)
    assert figures.auto_to_hindsight is not None
    assert figures.auto_to_hindsight.median == pytest.approx(0.99)


def test_a_peer_is_compared_plain_and_at_its_best_lengths() -> None:
    speeds = {"plain": [10], "auto": [18], "peer plain": [12]}
    (figures,) = compare(runs(speeds | {"peer n_max = 1": [8], "peer n_max = 3": [9]}))
    assert (figures.best_peer_draft, figures.best_peer) == (N3, PEER_PLAIN)
    found = [
        figures.plain_to_peer_plain,
        figures.auto_to_peer_plain,
        figures.auto_to_peer_draft,
        figures.auto_to_peer_best,
    ]
    medians = [spread.median for spread in found if spread is not None]
    assert medians == pytest.approx([10 / 12, 1.5, 2.0, 1.5])


def test_a_mode_that_did_not_run_has_no_ratio() -> None:
    (figures,) = compare(runs({"plain": [10]}))
    assert (figures.best_fixed, figures.best_peer, figures.hindsight) == (None, None, PLAIN)
    assert figures.auto_to_plain is figures.auto_to_hindsight is figures.auto_to_peer_best is None


def test_modes_are_sorted_by_length() -> None:
    speeds = {"peer plain": [1.0], "auto": [1.0], "k = 3": [1.0], "k = 1": [1.0], "plain": [1.0]}
    (figures,) = compare(runs(speeds))
    assert [f.mode for f in figures.modes] == [PLAIN, K1, K3, AUTO, PEER_PLAIN]


def test_texts_are_compared_with_plain_decodings() -> None:
    answers = [run(PLAIN, 1, text="a"), run(AUTO, 1, text="b")]
    answers += [run(PLAIN, 1, prompt=1, text="c"), run(AUTO, 1, prompt=1, text="c")]
    auto = compare(answers)[0].of_mode("auto")
    assert auto is not None
    assert (auto.n_same_text, auto.n_answers) == (1, 2)


def test_each_answer_of_several_streams_is_compared() -> None:
    plain = replace(run(PLAIN, 1, streams=2), texts=("a", "b"))
    auto = replace(run(AUTO, 1, streams=2), texts=("a", "c"))
    figures = compare([plain, auto])[0].of_mode("auto")
    assert figures is not None
    assert (figures.n_same_text, figures.n_answers) == (1, 2)


def test_drafts_are_summed_over_the_prompts() -> None:
    auto = compare(runs({"plain": [1, 1], "auto": [1, 1]}))[0].of_mode("auto")
    assert auto is not None
    assert (auto.drafted, auto.accepted, auto.mean_draft_length) == (20, 14, 2.5)
    assert (auto.drafted_per_depth, auto.accepted_per_depth) == ((8, 8, 4), (8, 4, 2))


def test_a_prompt_whose_answer_ended_at_once_is_left_out_and_counted() -> None:
    answers = [*runs({"plain": [10, 10], "auto": [20, 20]})]
    answers += [run(PLAIN, 10, prompt=2), run(AUTO, 999, prompt=2, n_timed=2)]
    (figures,) = compare(answers)
    assert figures.n_left_out == 1
    assert [f.n_answers for f in figures.modes] == [2, 2]


def test_nothing_timed_is_no_figures_and_no_error() -> None:
    (figures,) = compare([run(PLAIN, 1, n_timed=1), run(AUTO, 1, n_timed=1)])
    assert figures.modes == ()
    assert figures.auto_to_plain is None


def test_workloads_temperatures_and_streams_are_kept_apart_in_their_order() -> None:
    answers = [run(PLAIN, 1, temperature=t, workload=w) for w in ("qa", "chat") for t in (0.8, 0.0)]
    answers.append(run(PLAIN, 1, streams=4))
    assert [(c.workload, c.temperature, c.streams) for c in compare(answers)] == [
        ("qa", 0.8, 1),
        ("qa", 0.0, 1),
        ("chat", 0.8, 1),
        ("chat", 0.0, 1),
        ("json", 0.0, 4),
    ]


def test_overhead_is_the_time_of_plain_decoding_outside_of_target_passes() -> None:
    answers = [run(PLAIN, 100, native_share=0.9), run(AUTO, 100, native_share=0.1)]
    (figures,) = compare(answers)
    assert figures.overhead_ms is not None
    assert figures.overhead_ms.median == pytest.approx(1.0)
    assert compare([run(PLAIN, 100)])[0].overhead_ms is None


def test_the_most_cached_tokens_are_reported() -> None:
    answers = [run(PLAIN, 1, n_cached=3), run(AUTO, 1, n_cached=9)]
    assert compare(answers)[0].max_cached == 9


@given(st.lists(st.floats(0.001, 1e6), min_size=1))
def test_a_median_lies_within_its_spread(values: list[float]) -> None:
    spread = MedianRange.of(values)
    assert spread is not None
    assert spread.low <= spread.median <= spread.high


def test_no_values_have_no_range() -> None:
    assert MedianRange.of([]) is None
