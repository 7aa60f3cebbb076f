"""The choice of drafter: no draft model stays parked for ever."""

from __future__ import annotations

from specd.core import BandHistory, PairHistory, SpeculationMode
from specd.engine.speculative.controller import LOOKUP, MAX_DRAFT, MODEL, NO_DRAFTER, Controller
from specd.engine.speculative.cost_model import CostModel

#: A machine where wide passes are almost free.
GPU = {1: 1.0, 17: 1.15}


def opened(draft_step_s: float) -> Controller:
    controller = Controller(CostModel(GPU, draft_step_s, draft_step_s / 10), 0.4)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL, LOOKUP])
    return controller


def test_negative_worth_does_not_end_probing() -> None:
    """The drafter costs as much as the target, so no draft is ever worth sending."""
    controller = opened(draft_step_s=1.0)
    asked = []
    for step in range(8000):
        if controller.plan(1, 0, 1):
            controller.choose([(1, [0.05])])
            controller.observe_step(1, NO_DRAFTER, 0, 0, [(MODEL, [0.05], 0, 1)])
            asked.append(step)
        else:
            controller.choose([(1, [])])
            controller.observe_step(1, NO_DRAFTER, 0, 0, [])
    assert asked[-1] > 5000


def test_reading_a_long_prompt_is_not_charged_to_one_draft() -> None:
    controller = opened(draft_step_s=0.05)
    margins = [6.0, 6.0, 6.0]
    # As dear as 10 plain passes, this once.
    controller.observe_prompt(1, 200.0)
    for n_missed in (2000, *[0] * 20):
        assert controller.plan(1, n_missed, 1) == MAX_DRAFT
        assert controller.choose([(1, margins)]) == [(MODEL, 3)]
        controller.observe_step(1, MODEL, 3, 3, [(MODEL, margins, 3, 3)])
    # A single token promises less than such a draft.
    assert controller.plan(1, 0, 1, [7.0]) == MAX_DRAFT


def test_an_impossible_gain_does_not_prevent_drafting() -> None:
    claim = BandHistory(drafter=MODEL, band=2, gain=1e308)
    costs = CostModel({1: 0.01, 17: 0.0115}, 0.0005)
    controller = Controller(costs, 0.4, PairHistory(bands=(claim,)))
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    margins = [6.0, 6.0, 6.0]
    sent = []
    for _ in range(60):
        drafted = margins if controller.plan(1, 0, 1) else []
        ((_, n),) = controller.choose([(1, drafted)])
        guesses = [(MODEL, drafted, n, n)] if drafted else []
        controller.observe_step(1, MODEL if n else NO_DRAFTER, n, n, guesses)
        sent.append(n)
    assert sent[20:] == [3] * 40
