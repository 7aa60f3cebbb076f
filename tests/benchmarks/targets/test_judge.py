"""Test that each of the ten targets passes, fails or is unmeasured by its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.targets.findings import Findings
from benchmarks.targets.judge import judge
from benchmarks.targets.output_equality import OutputEquality
from benchmarks.targets.round_time import RoundTime
from benchmarks.targets.sampling_check import SamplingCheck
from benchmarks.targets.second_turn import SecondTurn
from benchmarks.targets.verdict import Figure, Outcome, Verdict
from specd.bench.peer import PeerBinary
from specd.bench.runs import MedianRange, Run
from tests.bench.report_builders import MODES, report, run
from tests.benchmarks.targets.findings_builder import findings

Speeds = dict[str, float]

GREEDY: Speeds = {"plain": 20, "k = 3": 25, "auto": 30, "peer plain": 20, "peer n_max = 3": 26}
USUAL: Speeds = {**GREEDY, "peer n_max = 3": 18}


def runs(
    speeds: Speeds, *, temperature: float, streams: int = 1, workload: str = "json"
) -> list[Run]:
    return [
        run(
            MODES[name],
            speed,
            prompt=prompt,
            temperature=temperature,
            streams=streams,
            workload=workload,
            native_share=0.9,
        )
        for name, speed in speeds.items()
        for prompt in range(2)
    ]


def found(greedy: Speeds = GREEDY, usual: Speeds = USUAL) -> Findings:
    """All ten are met."""
    alone = runs(greedy, temperature=0.0) + runs(usual, temperature=0.8)
    hostile = {"plain": 20.0, "auto": 19.8}
    several = {"plain": 40.0, "auto": 45.0, "peer plain": 41.0, "peer n_max = 3": 44.0}
    for temperature in (0.0, 0.8):
        alone += runs(hostile, temperature=temperature, workload="hostile")
        for streams in (4, 8):
            alone += runs(several, temperature=temperature, streams=streams, workload="mixed")
    return findings(report(alone))


def verdict(number: int, of: Findings) -> Verdict:
    return next(each for each in judge(of) if each.number == number)


def test_all_ten_are_judged_in_order_and_can_be_met() -> None:
    verdicts = judge(found())
    assert [each.number for each in verdicts] == list(range(1, 11))
    assert {each.outcome for each in verdicts} == {Outcome.PASS}
    assert not any("missed" in note for each in verdicts for note in each.notes())


@pytest.mark.parametrize(
    "number,greedy,usual",
    [
        (1, {}, {"peer plain": 20.5}),
        (1, {"peer plain": 20.5}, {}),
        (2, {"peer n_max = 3": 27.5}, {}),  # 1.09 × each workload's best, not 1.12 × a single one
        (3, {}, {"peer n_max = 3": 19}),
        (4, {"k = 3": 31}, {}),
        (4, {"k = 3": 29}, {}),  # below 1.05 × the best single length
        (4, {}, {"k = 3": 31}),
    ],
)
def test_a_speed_that_is_too_low_fails_its_target_alone(
    number: int, greedy: Speeds, usual: Speeds
) -> None:
    verdicts = judge(found(GREEDY | greedy, USUAL | usual))
    assert [each.number for each in verdicts if each.outcome is Outcome.FAIL] == [number]
    notes = list(verdicts[number - 1].notes())
    assert any(note.startswith("missed: ") for note in notes)
    assert any("outside of the models' passes" in note for note in notes)


def test_the_lowest_workload_decides_about_hindsight() -> None:
    chat = runs({**GREEDY, "auto": 24}, temperature=0.0, workload="chat")
    good = found()
    judged = verdict(4, replace(good, report=report([*chat, *good.report.runs])))
    assert judged.outcome is Outcome.FAIL
    assert "lowest workload (chat): 0.96" in judged.measured


@pytest.mark.parametrize("workload,streams,number", [("hostile", 1, 5), ("mixed", 8, 7)])
def test_a_useless_drafter_and_several_streams_have_their_own_targets(
    workload: str, streams: int, number: int
) -> None:
    good = found()
    kept = [
        each for each in good.report.runs if (each.workload, each.streams) != (workload, streams)
    ]
    slow = {"plain": 20.0, "auto": 19.0, "peer plain": 20.0, "peer n_max = 3": 18.0}
    bad = runs(slow, temperature=0.8, streams=streams, workload=workload)
    verdicts = judge(replace(good, report=report([*kept, *bad])))
    assert [each.number for each in verdicts if each.outcome is Outcome.FAIL] == [number]


def round_time(slots: int, temperature: float, ms: float, mode: str = "auto") -> RoundTime:
    return RoundTime(
        slots=slots,
        temperature=temperature,
        mode=mode,
        overhead_ms=MedianRange(ms, ms / 2, ms * 2),
        round_ms=9.0,
        tokens_per_round=1.5,
        n_vocab=131072,
        n_requests=4,
    )


@pytest.mark.parametrize(
    "times,outcome",
    [
        ([(1, 0.0, 0.2), (1, 0.8, 0.5), (8, 0.8, 2.0)], Outcome.PASS),
        ([(1, 0.0, 0.2), (1, 0.8, 0.51), (8, 0.8, 2.0)], Outcome.FAIL),
        ([(1, 0.8, 0.5), (8, 0.0, 2.1), (8, 0.8, 1.0)], Outcome.FAIL),
        ([], Outcome.UNKNOWN),
    ],
)
def test_the_worst_temperature_counts_per_round(
    times: Sequence[tuple[int, float, float]], outcome: Outcome
) -> None:
    rounds = (
        *(round_time(*time) for time in times),
        *(round_time(1, 0.8, 9.0, "k = 3"),) * bool(times),
    )
    judged = verdict(6, replace(found(), rounds=rounds))
    assert judged.outcome is outcome
    if outcome is Outcome.FAIL:
        assert any("of 9.00 ms" in note for note in judged.notes())


def test_one_answer_that_differs_fails_and_is_named() -> None:
    good = found()
    one = replace(good.sameness[0], n_same=99, different=(17,))
    judged = verdict(8, replace(good, sameness=(one, good.sameness[1])))
    assert judged.outcome is Outcome.FAIL
    assert any("prompts 17 differ" in note for note in judged.notes())


def test_too_few_prompts_fail_the_target() -> None:
    few = OutputEquality(
        temperature=0.0, n_prompts=12, n_same=12, n_tokens=1, n_drafted=1, n_accepted=1
    )
    assert verdict(8, replace(found(), sameness=(few,))).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "changes,outcome",
    [
        ({"p_value": 0.011}, Outcome.PASS),
        ({"p_value": 0.009}, Outcome.FAIL),
        ({"n_draws": 49_000}, Outcome.FAIL),
        ({"p_value": 0.0, "n_impossible": 3}, Outcome.FAIL),
    ],
)
def test_draws_are_judged_by_chance_and_by_their_number(
    changes: dict[str, float], outcome: Outcome
) -> None:
    good = found()
    test: SamplingCheck = replace(good.draws[0], **changes)  # type: ignore[arg-type]
    assert verdict(9, replace(good, draws=(test,))).outcome is outcome


def test_one_token_evaluated_again_fails_the_target() -> None:
    turns = (
        SecondTurn(n_prompt=90, n_known=80, n_evaluated=10),
        SecondTurn(n_prompt=90, n_known=80, n_evaluated=11),
    )
    judged = verdict(10, replace(found(), second_turns=turns))
    assert judged.outcome is Outcome.FAIL
    assert "worst of 2 chats: 1" in judged.measured


def test_a_target_without_figures_is_not_measured() -> None:
    empty = Findings(report=report([run(MODES["plain"], 20)]), commands=())
    assert {each.outcome for each in judge(empty)} == {Outcome.UNKNOWN}


def test_a_peer_of_another_build_gives_a_remark() -> None:
    good = found()
    other = PeerBinary(program=(), build="build 7", same_build=False)
    judged = verdict(1, replace(good, report=replace(good.report, peer=other)))
    assert any("another build" in note for note in judged.notes())


def test_figures_are_rounded_before_they_are_compared_with_their_goals() -> None:
    assert Figure(of="x", value=0.996, goal=1.0).is_met
    assert not Figure(of="x", value=0.994, goal=1.0).is_met
    assert not Figure(of="x", value=2.006, goal=2.0, at_most=True).is_met


def test_a_goal_within_the_noise_is_doubtful() -> None:
    assert Figure(of="x", value=1.1, low=0.9, high=1.2, goal=1.0).is_doubtful
    assert not Figure(of="x", value=1.1, low=1.05, high=1.2, goal=1.0).is_doubtful
    assert not Figure(of="x", value=1.0, goal=1.0).is_doubtful
