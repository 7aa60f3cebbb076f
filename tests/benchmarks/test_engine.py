"""Test the simulated engine: exact, repeatable, and all time is charged."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.simulator.curves import CURVES, PLAIN_NS, Curve, curve
from benchmarks.simulator.engine import SimulatedEngine, SimulatedRequest, plain_ns
from benchmarks.simulator.fixed_policy import fixed_length_run
from benchmarks.simulator.sessions import LONGEST, SHORTEST, session
from benchmarks.simulator.shared_pass_timer import SharedPassTimer
from specd.core import DrafterKind, SpeculationMode, SpeculationState
from specd.engine.speculative.controller import MAX_DRAFT
from tests.benchmarks import synthetic_traces

TRACE = synthetic_traces.trace()
ANSWERS = TRACE.at(0.8)


def test_a_curve_is_interpolated_and_extrapolated() -> None:
    costs = curve("gpu-cheap")
    assert costs.target_ns(1) == PLAIN_NS
    assert costs.target_ns(8) == 1.3 * PLAIN_NS
    assert costs.target_ns(13) == pytest.approx(1.6 * PLAIN_NS, abs=1)
    assert costs.target_ns(33) == pytest.approx(2.1 * PLAIN_NS, abs=1)
    assert costs.draft_ns(3, 10) == 3 * PLAIN_NS // 20 + 10 * PLAIN_NS // 2000


@pytest.mark.parametrize("costs", CURVES, ids=lambda costs: str(costs.name))
def test_no_curve_gets_cheaper_with_its_width(costs: Curve) -> None:
    widths = [costs.target_ns(width) for width in range(1, 80)]
    assert widths == sorted(widths)


def test_plain_decoding_takes_a_pass_for_each_token_but_the_first() -> None:
    engine = SimulatedEngine(curve("gpu-cheap"))
    answered = engine.answer(SimulatedRequest(ANSWERS[0], 57, n_draft_max=0))
    assert answered.ns == plain_ns(57) == 56 * PLAIN_NS
    assert answered.done.usage.n_generated == 57
    assert answered.done.speculation.state is SpeculationState.OFF


@pytest.mark.parametrize("length", [1, 2, 5, 11, MAX_DRAFT])
def test_the_time_at_a_fixed_length_is_the_sum_of_its_steps(length: int) -> None:
    for costs in (curve("cpu-steps"), curve("gpu-dear-drafter")):
        engine = SimulatedEngine(costs)
        for one in ANSWERS[:6]:
            walk = fixed_length_run(one, costs, length)
            for end in (2, 24, 25, 31, 100, 207):
                asked = SimulatedRequest(one, end, length, SpeculationMode.FIXED)
                assert engine.answer(asked).ns == walk.ns(end)


@pytest.mark.parametrize("costs", CURVES, ids=lambda costs: str(costs.name))
def test_an_engine_has_measured_its_curve_when_it_starts(costs: Curve) -> None:
    target_s, step_s, read_s = SimulatedEngine(costs).controller.costs.measured()
    for width, seconds in target_s.items():
        assert seconds == pytest.approx(costs.target_ns(width) * 1e-9)
    assert step_s == pytest.approx(costs.draft_ns(1, 0) * 1e-9)
    assert read_s == pytest.approx(costs.draft_ns(0, 1) * 1e-9)


def test_all_time_is_charged_to_a_request() -> None:
    engine = SimulatedEngine(curve("cpu-steps"))
    began, cuts = engine.now_ns, session(ANSWERS, 5)
    answered = [engine.answer(SimulatedRequest(cut.answer, cut.end)) for cut in cuts]
    # Each prompt is one pass, which gives the first token.
    assert engine.now_ns - began == sum(a.ns + PLAIN_NS for a in answered)
    for cut, each in zip(cuts, answered, strict=True):
        said = each.done.speculation
        assert each.done.usage.n_generated == cut.end
        # After a draft that contains the end, the pass adds no further token.
        assert 1 + said.n_steps + said.draft_n_accepted in (cut.end, cut.end + 1)


@pytest.mark.parametrize("n_slots", [1, 4])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_same_seed_gives_the_same_times(n_slots: int, noise: float) -> None:
    def times(seed: int) -> list[int]:
        engine = SimulatedEngine(curve("gpu-cheap"), n_slots=n_slots, noise=noise, seed=seed)
        asked = [SimulatedRequest(cut.answer, cut.end) for cut in session(ANSWERS, 5)]
        return [each.ns for each in engine.answer_all(asked)]

    assert times(1) == times(1)
    assert (times(1) != times(2)) == bool(noise)


def test_sessions_differ_by_number_alone() -> None:
    cuts = session(ANSWERS, 7)
    assert cuts == session(ANSWERS, 7) != session(ANSWERS, 8)
    assert len({cut.answer for cut in cuts}) == len(cuts) == len(ANSWERS)
    assert all(SHORTEST <= cut.end <= LONGEST for cut in cuts)


def test_four_slots_share_their_passes() -> None:
    cuts = session(ANSWERS, 5)

    def taken(n_slots: int) -> int:
        engine = SimulatedEngine(curve("gpu-cheap"), n_slots=n_slots)
        began = engine.now_ns
        for each in engine.answer_all([SimulatedRequest(cut.answer, cut.end) for cut in cuts]):
            assert each.done.usage.n_generated == each.asked.end
        return engine.now_ns - began

    assert taken(4) < 0.5 * taken(1)


@pytest.mark.parametrize("n_slots", [1, 4])
@pytest.mark.parametrize("length", [0, 1, 5, MAX_DRAFT])
def test_the_time_of_several_at_a_fixed_length_is_the_sum_of_their_passes(
    length: int, n_slots: int
) -> None:
    """The prompts differ in length: some take one pass, some several."""
    chance = random.Random(length)
    long = [
        replace(one, prompt=[chance.randrange(50) for _ in range(chance.choice((3, 200, 900)))])
        for one in ANSWERS
    ]
    cuts = session(long, 5)
    for costs in (curve("cpu-steps"), curve("gpu-dear-drafter")):
        engine = SimulatedEngine(costs, n_slots=n_slots)
        began = engine.now_ns
        engine.answer_all(
            [SimulatedRequest(c.answer, c.end, length, SpeculationMode.FIXED) for c in cuts]
        )
        assert SharedPassTimer(costs, length).ns(cuts, n_slots) == engine.now_ns - began


def test_a_request_alone_is_charged_all_its_time() -> None:
    engine = SimulatedEngine(curve("cpu-steps"))
    for cut in session(ANSWERS, 5):
        answered = engine.answer(SimulatedRequest(cut.answer, cut.end))
        assert answered.share.taken_ns == pytest.approx(answered.ns)
        assert answered.share.plain_ns == plain_ns(cut.end)
        lost = (answered.ns - 1.05 * plain_ns(cut.end)) / PLAIN_NS
        assert answered.excess == pytest.approx(lost)


@pytest.mark.parametrize("length", [0, 3])
def test_shares_of_four_slots_add_up_to_their_passes(length: int) -> None:
    """All answers have one length, so none reads its prompt while another one decodes."""
    costs = curve("experts")
    engine = SimulatedEngine(costs, n_slots=4)
    began = engine.now_ns
    asked = [
        SimulatedRequest(replace(one, prompt=[1]), 60, length, SpeculationMode.FIXED)
        for one in ANSWERS
    ]
    answered = engine.answer_all(asked[:4])
    prompts_ns = costs.target_ns(4)
    assert sum(a.share.taken_ns for a in answered) == pytest.approx(
        engine.now_ns - began - prompts_ns
    )
    if not length:
        for each in answered:
            assert each.share.taken_ns == each.share.plain_ns == 59 * costs.target_ns(4) / 4
            assert each.share.plain_pass_ns == costs.target_ns(4) / 4


def test_an_adversary_turns_wrong_after_its_drafts_are_sent() -> None:
    engine = SimulatedEngine(curve("gpu-large"))
    fixed_length = SimulatedRequest(ANSWERS[0], 200, 4, SpeculationMode.FIXED, adversary=(3, 1))
    said = engine.answer(fixed_length).done.speculation
    # The first four drafts are right; as drafts never stop, no later one is right.
    assert said.draft_n_accepted == 4 * 4


def test_prompt_lookup_alone_finds_repeated_tokens() -> None:
    one = synthetic_traces.answer(0.0, 1)
    again = synthetic_traces.answer(0.0, 1)
    again.tokens[100:200] = one.tokens[0:100]  # type: ignore[index]
    engine = SimulatedEngine(curve("gpu-cheap"))
    lookup = (DrafterKind.LOOKUP,)
    said = engine.answer(SimulatedRequest(again, 200, drafters=lookup)).done.speculation
    assert said.lookup_n == said.draft_n > 0
    assert said.draft_n_accepted > 60


@pytest.mark.parametrize("name, least, most", [("gpu-large", 1.05, 1.3), ("dear-rows", 0.99, 1.01)])
def test_siblings_are_sent_where_rows_are_cheap(name: str, least: float, most: float) -> None:
    answers = [synthetic_traces.answer(0.5, number) for number in range(8)]
    with_siblings, without = (
        sum(one.ns for one in map(engine.answer, [SimulatedRequest(a, 200) for a in answers]))
        for engine in (SimulatedEngine(curve(name)), SimulatedEngine(curve(name), n_leaves=0))
    )
    assert least < without / with_siblings < most
