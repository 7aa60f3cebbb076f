"""Test the figures of all workloads together."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench.mix import Ratio, mixes
from specd.bench.mode import AUTO, PLAIN
from specd.bench.runs import Run
from tests.bench.report_builders import K1, N1, run, runs
from tests.fast import computes_long


def value(ratio: Ratio | None) -> float:
    assert ratio is not None
    return ratio.value


#: Short drafts suit one workload, long ones the other; overall the short ones are faster.
CODE = runs({"plain": [10], "k = 1": [16], "k = 3": [20], "auto": [20]}, "code_completion")
CHAT = runs({"plain": [10], "k = 1": [10], "k = 3": [5], "auto": [9]}, "chat")


def test_a_mix_is_the_geometric_mean_of_its_workloads() -> None:
    (mix,) = mixes([*CODE, *CHAT])
    assert mix.workloads == ("code_completion", "chat")
    assert value(mix.auto_to_plain) == pytest.approx(math.sqrt(2.0 * 0.9))
    auto = mix.of_mode("auto")
    assert auto is not None
    assert auto.ratio == mix.auto_to_plain


def test_a_workload_counts_by_the_median_of_its_prompts() -> None:
    (mix,) = mixes(runs({"plain": [10, 10, 10], "auto": [5, 20, 90]}))
    assert value(mix.auto_to_plain) == pytest.approx(2.0)


def test_tokens_over_seconds_weigh_the_slow_ones() -> None:
    (mix,) = mixes([*CODE, *CHAT])
    assert mix.auto_to_plain is not None
    assert mix.auto_to_plain.by_total == pytest.approx((2 / (1 / 20 + 1 / 9)) / 10)


def test_hindsight_chooses_for_each_workload_and_the_single_length_for_all() -> None:
    (mix,) = mixes([*CODE, *CHAT])
    assert mix.single_fixed == K1
    assert value(mix.auto_to_single_fixed) == pytest.approx(math.sqrt(20 / 16 * 9 / 10))
    # k = 3 for the code; for the chat plain and k = 1 are equal.
    assert value(mix.auto_to_hindsight) == pytest.approx(math.sqrt(20 / 20 * 9 / 10))


def test_a_peers_single_length_and_its_best_of_each_workload() -> None:
    peers = {"peer plain": [10], "peer n_max = 1": [12], "peer n_max = 3": [16]}
    others = {"peer plain": [10], "peer n_max = 1": [9], "peer n_max = 3": [4]}
    (mix,) = mixes([*CODE, *runs(peers, "code_completion"), *CHAT, *runs(others, "chat")])
    assert mix.single_peer == N1
    assert value(mix.plain_to_peer_plain) == pytest.approx(1.0)
    assert value(mix.auto_to_peer_draft) == pytest.approx(math.sqrt(20 / 16 * 9 / 9))
    assert value(mix.auto_to_peer_single) == pytest.approx(math.sqrt(20 / 12 * 9 / 9))
    assert value(mix.auto_to_peer_best) == pytest.approx(math.sqrt(20 / 16 * 9 / 10))


def test_the_hostile_workload_is_no_part_of_the_mix() -> None:
    hostile = runs({"plain": [10], "auto": [1]}, "hostile")
    (mix,) = mixes([*CODE, *CHAT, *hostile])
    assert mix.workloads == ("code_completion", "chat")
    assert mixes(hostile) == ()


def test_a_mode_that_a_workload_lacks_is_not_in_the_mix() -> None:
    (mix,) = mixes([*CODE, *runs({"plain": [10], "auto": [11]}, "chat")])
    assert [figures.mode for figures in mix.modes] == [PLAIN, AUTO]
    assert mix.single_fixed is None
    assert mix.auto_to_single_fixed is None
    assert value(mix.auto_to_plain) == pytest.approx(math.sqrt(2 * 1.1))


def test_temperatures_and_streams_are_mixed_apart() -> None:
    answers = [run(PLAIN, 1, temperature=t, streams=n) for n in (1, 4) for t in (0.0, 0.8)]
    found = [(mix.streams, mix.temperature) for mix in mixes(answers)]
    assert found == [(1, 0.0), (1, 0.8), (4, 0.0), (4, 0.8)]


def noisy(factors: list[float]) -> list[Run]:
    return runs({"plain": [10.0] * len(factors), "auto": [15 * factor for factor in factors]})


@computes_long
@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6))
def test_the_interval_is_the_same_every_time_and_grows_with_the_noise(factors: list[float]) -> None:
    interval = mixes(noisy(factors))[0].auto_to_plain
    assert interval == mixes(noisy(factors))[0].auto_to_plain
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    wider = mixes(noisy([factor**2 for factor in factors]))[0].auto_to_plain
    assert wider is not None
    assert wider.low is not None
    assert wider.high is not None
    assert wider.high / wider.low >= interval.high / interval.low * (1 - 1e-9)


def test_equal_ratios_give_a_narrow_interval_and_single_ones_none() -> None:
    sure = mixes(noisy([1.0, 1.0]))[0].auto_to_plain
    assert sure is not None
    assert (sure.low, sure.high) == pytest.approx((1.5, 1.5))
    single = mixes(noisy([1.0]))[0].auto_to_plain
    assert single is not None
    assert (single.low, single.high) == (None, None)
