"""Figures from runs: medians, spreads, and who is compared with whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench.comparison import Spread, compare
from specd.bench.runs import Run
from specd.core import SpeculationStats, Usage

N_TIMED = 20


def run(
    prompt: int,
    mode: str,
    tokens_per_s: float,
    *,
    text: str = "same",
    temperature: float = 0.0,
    n_timed: int = N_TIMED,
    native_share: float = 0.0,
    n_cached: int = 1,
) -> Run:
    generate_ns = round(1e9 * n_timed / tokens_per_s)
    usage = Usage(
        n_prompt=10,
        n_cached=n_cached,
        n_generated=n_timed + 1,
        generate_ns=generate_ns,
        native_ns=round(generate_ns * native_share),
    )
    drafts = mode != "plain"
    return Run(
        temperature=temperature,
        prompt=prompt,
        mode=mode,
        text=text,
        usage=usage,
        speculation=SpeculationStats(
            draft_n=10 * drafts, draft_n_accepted=7 * drafts, rounds=4 * drafts
        ),
    )


def runs(speeds: Mapping[str, Sequence[float]]) -> list[Run]:
    """speeds: per mode, one per prompt."""
    return [run(i, mode, v) for mode, each in speeds.items() for i, v in enumerate(each)]


def test_a_ratio_is_taken_prompt_by_prompt() -> None:
    (figures,) = compare(runs({"plain": [10, 20, 40], "auto": [30, 20, 60]}))
    auto = figures.of_mode("auto")
    assert auto is not None
    ratio = auto.ratio
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((1.5, 1.0, 3.0))
    assert auto.tokens_per_s.median == pytest.approx(30)


def test_auto_is_compared_with_the_best_mode_and_with_hindsight() -> None:
    speeds = {"plain": [10, 10], "k = 1": [20, 12], "k = 2": [15, 16], "auto": [20, 15]}
    (figures,) = compare(runs(speeds))
    assert figures.best == "k = 1"
    assert figures.auto_to_best is not None
    assert figures.auto_to_best.median == pytest.approx((1.0 + 15 / 12) / 2)
    assert figures.auto_to_hindsight is not None
    assert figures.auto_to_hindsight.median == pytest.approx((1.0 + 15 / 16) / 2)


def test_plain_can_be_the_best() -> None:
    (figures,) = compare(runs({"plain": [10, 10], "k = 1": [9, 8], "auto": [9.9, 9.9]}))
    assert figures.best == "plain"


def test_modes_stand_in_the_order_of_their_lengths() -> None:
    speeds = {"auto": [1.0], "k = 10": [1.0], "k = 2": [1.0], "plain": [1.0]}
    (figures,) = compare(runs(speeds))
    assert [mode.mode for mode in figures.modes] == ["plain", "k = 2", "k = 10", "auto"]


def test_texts_are_compared_with_plain_decodings() -> None:
    answers = [run(0, "plain", 1, text="a"), run(0, "auto", 1, text="b")]
    answers += [run(1, "plain", 1, text="c"), run(1, "auto", 1, text="c")]
    auto = compare(answers)[0].of_mode("auto")
    assert auto is not None
    assert (auto.n_same_text, auto.n_prompts) == (1, 2)


def test_drafts_are_summed_over_the_prompts() -> None:
    auto = compare(runs({"plain": [1, 1], "auto": [1, 1]}))[0].of_mode("auto")
    assert auto is not None
    assert (auto.drafted, auto.accepted, auto.mean_draft_length) == (20, 14, 2.5)


def test_a_prompt_whose_answer_ended_at_once_is_left_out_and_counted() -> None:
    answers = [*runs({"plain": [10, 10], "auto": [20, 20]})]
    answers += [run(2, "plain", 10), run(2, "auto", 999, n_timed=2)]
    (figures,) = compare(answers)
    assert figures.n_left_out == 1
    assert [mode.n_prompts for mode in figures.modes] == [2, 2]


def test_nothing_timed_is_no_figures_and_no_error() -> None:
    (figures,) = compare([run(0, "plain", 1, n_timed=1), run(0, "auto", 1, n_timed=1)])
    assert figures.modes == ()
    assert figures.auto_to_best is None


def test_temperatures_are_kept_apart_in_their_order() -> None:
    answers = [run(0, "plain", 1, temperature=t) for t in (0.8, 0.0)]
    assert [figures.temperature for figures in compare(answers)] == [0.8, 0.0]


def test_overhead_is_the_time_of_plain_decoding_outside_of_target_passes() -> None:
    answers = [run(0, "plain", 100, native_share=0.9), run(0, "auto", 100, native_share=0.1)]
    (figures,) = compare(answers)
    assert figures.overhead_ms is not None
    assert figures.overhead_ms.median == pytest.approx(1.0)


def test_an_engine_that_does_not_say_its_native_time_has_no_overhead() -> None:
    assert compare([run(0, "plain", 100)])[0].overhead_ms is None


def test_the_largest_hit_of_the_cache_is_told() -> None:
    answers = [run(0, "plain", 1, n_cached=3), run(0, "auto", 1, n_cached=9)]
    assert compare(answers)[0].max_cached == 9


@given(st.lists(st.floats(0.001, 1e6), min_size=1))
def test_a_median_lies_within_its_spread(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None
    assert spread.low <= spread.median <= spread.high


def test_of_no_values_there_is_no_spread() -> None:
    assert Spread.of([]) is None
