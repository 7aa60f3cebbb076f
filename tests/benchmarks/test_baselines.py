"""Test the baselines: more knowledge is faster, and clairvoyance is fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulator.adversarial import with_useless_drafts
from benchmarks.simulator.baselines import LENGTHS, Baselines
from benchmarks.simulator.cells import run_cell
from benchmarks.simulator.curves import CURVES, PLAIN_NS, Curve, curve
from benchmarks.simulator.engine import SimulatedEngine, SimulatedRequest, plain_ns
from benchmarks.simulator.positions import drafted, lookup_guesses
from benchmarks.simulator.sessions import session
from benchmarks.simulator.situations import SITUATIONS, _join_parts, _part, run_situation
from specd.core import DrafterKind
from tests.benchmarks import synthetic_traces

TRACE = synthetic_traces.trace()
ANSWERS = TRACE.at(0.8)


@pytest.mark.parametrize("costs", CURVES, ids=lambda costs: str(costs.name))
def test_nothing_is_faster_than_clairvoyance(costs: Curve) -> None:
    known, engine = Baselines(ANSWERS, costs), SimulatedEngine(costs)
    for cut in session(ANSWERS, 3):
        least = known.clairvoyant_ns(cut.answer, cut.end)
        assert least <= plain_ns(cut.end)
        assert least <= known.oracle_ns(cut.answer, cut.end)
        assert least <= engine.answer(SimulatedRequest(cut.answer, cut.end)).ns
        assert all(least <= known.fixed_ns(cut.answer, cut.end, length) for length in LENGTHS)


@pytest.mark.parametrize("costs", CURVES, ids=lambda costs: str(costs.name))
def test_the_oracle_is_faster_than_every_single_length(costs: Curve) -> None:
    known = Baselines(ANSWERS, costs)
    cuts = [cut for number in range(6) for cut in session(ANSWERS, number)]
    oracle = sum(known.oracle_ns(cut.answer, cut.end) for cut in cuts)
    best = min(sum(known.fixed_ns(c.answer, c.end, length) for c in cuts) for length in LENGTHS)
    assert oracle <= best


def test_clairvoyance_sends_only_right_guesses() -> None:
    costs = curve("gpu-large")
    one = replace(synthetic_traces.answer(0.5, 1), right=[True] * 208)
    step = 1.1 * PLAIN_NS + 16 * 0.03 * PLAIN_NS
    assert Baselines([one], costs).clairvoyant_ns(one, 1 + 17) == pytest.approx(step, abs=1)
    wrong = replace(one, right=[False] * 208, second_right=[False] * 208, tokens=list(range(208)))
    assert Baselines([wrong], costs).clairvoyant_ns(wrong, 50) == plain_ns(50)
    by_siblings = replace(wrong, second_right=[True] * 208)
    step = 1.0 * PLAIN_NS + 0.03 * PLAIN_NS
    assert Baselines([by_siblings], costs).clairvoyant_ns(by_siblings, 1 + 2) == step


def test_true_probabilities_are_shares() -> None:
    guesses = drafted(ANSWERS)
    table, of_depth = guesses.table()
    right = [one for a in ANSWERS for one in a.right[1:]]
    assert of_depth[0] == pytest.approx(sum(right) / len(right), abs=0.01)
    assert table[-2, 0] > 0.9 > table[1, 0], "sure guesses are right more often"


def test_a_useless_drafter_is_never_right() -> None:
    answers = [with_useless_drafts(one) for one in ANSWERS]
    engine = SimulatedEngine(curve("gpu-large"))
    for one in answers[:4]:
        asked = SimulatedRequest(one, 150, drafters=(DrafterKind.MODEL,))
        said = engine.answer(asked).done.speculation
        assert said.draft_n_accepted == 0
    assert all(len(one.after_error[5]) == 15 for one in answers)


def test_parts_of_a_joined_answer_are_where_they_were() -> None:
    whole = _join_parts(ANSWERS[:3])
    assert whole.prompt == ANSWERS[0].prompt
    assert whole.tokens[64:128] == ANSWERS[1].tokens[:64]
    assert whole.right[128:] == ANSWERS[2].right[:64]
    part = _part(whole, 64)
    assert [*part.prompt, *part.tokens] == [*whole.prompt, *whole.tokens[:128]]
    assert part.right[1:] == ANSWERS[1].right[:64]
    assert [f.matches for f in lookup_guesses(part)[1:]] == [
        f.matches for f in lookup_guesses(whole)[64:128]
    ]


def test_a_cell_has_the_figures_of_its_sessions() -> None:
    figures = run_cell(TRACE, 0.8, curve("gpu-cheap"), 3)
    assert figures == run_cell(TRACE, 0.8, curve("gpu-cheap"), 3)
    assert figures.worst_session == pytest.approx(min(figures.by_session), abs=1e-4)
    assert figures.to_best == pytest.approx(sorted(figures.by_session)[1], abs=1e-4)
    assert figures.clairvoyant_gain > max(figures.oracle_gain, figures.best_gain, figures.gain)
    assert figures.gain > 1.2
    assert figures.worst_slowdown < 1.3


@pytest.mark.parametrize(
    "name, costs", [("useless drafter", "gpu-cheap"), ("text that turns", "cpu-steps")]
)
def test_situations_are_compared_with_their_references(name: str, costs: str) -> None:
    figures = run_situation(name, TRACE, 0.8, curve(costs), 2)
    assert 0.8 < figures.worst <= figures.ratio < 1.1


@pytest.mark.parametrize("name", ["four slots", "load that turns"])
def test_several_slots_are_judged_against_fixed_lengths(name: str) -> None:
    figures = run_situation(name, TRACE, 0.8, curve("gpu-cheap"), 1)
    assert figures.gain > 1.0
    assert figures.ratio == figures.worst > 0.7


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_the_time_of_its_worst_answer(name: str) -> None:
    figures = run_situation(name, TRACE, 0.8, curve("dear-rows"), 1)
    assert figures.worst_answer is not None
    assert figures.worst <= figures.ratio
    assert figures == run_situation(name, TRACE, 0.8, curve("dear-rows"), 1)


def test_another_history_gives_another_start() -> None:
    perfect, parked = (
        run_situation(f"history of a {name} pair", TRACE, 0.8, curve("gpu-cheap"), 1)
        for name in ("perfect", "parked")
    )
    assert perfect.ratio != parked.ratio
