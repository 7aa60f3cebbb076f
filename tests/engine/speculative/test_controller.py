"""The controller's decisions, driven by simulated texts: no model, no clock."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import SpeculationMode, SpeculationState
from specd.engine.speculative.controller import (
    DOES_NOT_PAY,
    LOW_ACCEPTANCE,
    MAX_DRAFT,
    Controller,
    temperature_band,
)
from specd.engine.speculative.cost_model import CostModel

#: V(w)/V(1) of a 1 B model on two cores, as docs/speculation.md tells: steps of four rows.
CPU = {1: 1.0, 2: 1.6, 3: 1.76, 4: 1.83, 5: 2.82, 8: 2.85, 9: 3.9, 17: 7.0}
#: A machine where wide passes are almost free.
GPU = {1: 1.0, 17: 1.15}


@dataclass
class Text:
    """A simulated text: each drafted token is accepted with the chance its margin suggests."""

    rate: float
    draw: random.Random

    def margin(self) -> float:
        return self.draw.expovariate(0.4)

    def accepted(self, margin: float) -> bool:
        chance = self.rate + (1 - self.rate) * self.rate * (margin > 2)
        return self.draw.random() < chance


@dataclass
class Run:
    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    drafting_steps: int = 0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def run(
    controller: Controller,
    truth: CostModel,
    text: Text,
    n_steps: int,
    *,
    n_max: int | None = None,
    mode: SpeculationMode = SpeculationMode.AUTO,
    request_id: int = 1,
) -> Run:
    """Drive one open request; time passes as `truth` says."""
    total = Run()
    for _ in range(n_steps):
        margins: list[float] = []
        limit = controller.plan(request_id, 0, 0, 0)
        while len(margins) < limit:
            margins.append(text.margin())
            if not controller.extend(request_id, margins):
                break
        n_sent = controller.choose(request_id, margins) if margins else 0
        n_accepted = 0
        while n_accepted < n_sent and text.accepted(margins[n_accepted]):
            n_accepted += 1
        if margins:
            controller.observe_draft(len(margins), 0, truth.draft_s(len(margins)))
            controller.observe_step(request_id, margins, n_sent, n_accepted)
            total.drafting_steps += 1
        seconds = truth.target_s(1 + n_sent)
        controller.observe_target(1 + n_sent, seconds)
        total.tokens += n_accepted + 1
        total.seconds += seconds + truth.draft_s(len(margins))
        total.drafted += len(margins)
    return total


def make(costs: dict[int, float], draft_step_s: float = 0.05, threshold: float = 0.4) -> Controller:
    return Controller(CostModel(costs, draft_step_s, draft_step_s / 10), threshold)


def speed_of(
    costs: dict[int, float], rate: float, n_max: int | None, mode: SpeculationMode, seed: int = 3
) -> float:
    controller = make(costs, threshold=0.0)
    controller.open(1, n_max, mode, 0.8)
    text = Text(rate, random.Random(seed))
    return run(controller, CostModel(costs, 0.05), text, 1500, n_max=n_max, mode=mode).speed


def mean_speed(
    costs: dict[int, float], rate: float, n_max: int | None, mode: SpeculationMode
) -> float:
    return statistics.mean(speed_of(costs, rate, n_max, mode, seed) for seed in range(3))


@pytest.mark.parametrize("costs", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.8, 0.95])
def test_auto_comes_near_the_best_fixed_length_in_hindsight(
    costs: dict[int, float], rate: float
) -> None:
    best = max(
        mean_speed(costs, rate, k, SpeculationMode.FIXED if k else SpeculationMode.AUTO)
        for k in (0, 1, 2, 3, 4, 6, 8)
    )
    assert mean_speed(costs, rate, None, SpeculationMode.AUTO) >= 0.95 * best


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.2))
def test_a_useless_drafter_costs_next_to_nothing(seed: int, rate: float) -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    total = run(controller, CostModel(CPU, 0.05), Text(rate, random.Random(seed)), 1000)
    assert total.speed >= 0.97
    assert controller.state(1)[0] is SpeculationState.PARKED


def test_the_threshold_parks_a_request_whatever_the_costs_say() -> None:
    # Passes and drafts are free here, so only the user's guard rail can switch off.
    controller = make({1: 1.0, 17: 1.0}, draft_step_s=1e-6, threshold=0.6)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    run(controller, CostModel({1: 1.0, 17: 1.0}, 1e-6), Text(0.3, random.Random(1)), 60)
    assert controller.state(1) == (SpeculationState.PARKED, LOW_ACCEPTANCE)


def test_a_parked_request_probes_ever_more_rarely() -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    truth, text = CostModel(CPU, 0.05), Text(0.0, random.Random(1))
    early = run(controller, truth, text, 400).drafting_steps
    late = run(controller, truth, text, 400).drafting_steps
    assert 0 < late < early
    assert controller.state(1)[1] in {DOES_NOT_PAY, LOW_ACCEPTANCE}


def test_drafting_resumes_when_the_text_turns() -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    truth = CostModel(CPU, 0.05)
    run(controller, truth, Text(0.0, random.Random(1)), 200)
    assert controller.state(1)[0] is SpeculationState.PARKED
    run(controller, truth, Text(0.95, random.Random(2)), 800)
    assert controller.state(1) == (SpeculationState.ACTIVE, "")


def test_a_probe_that_pays_but_is_refused_too_often_stays_parked() -> None:
    """Passes and drafts are free here: every probe gains, and only the threshold parks it."""
    free = {1: 1.0, 17: 1.0}
    controller = make(free, draft_step_s=1e-6, threshold=0.6)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    run(controller, CostModel(free, 1e-6), Text(0.3, random.Random(1)), 1000)
    assert controller.state(1) == (SpeculationState.PARKED, LOW_ACCEPTANCE)


def test_probing_costs_about_a_hundredth() -> None:
    """A drafter as dear as three passes: each probe loses much, so probes must be far apart."""
    controller = make(CPU, draft_step_s=3.0)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    truth = CostModel(CPU, 3.0)
    run(controller, truth, Text(0.0, random.Random(1)), 200)
    assert run(controller, truth, Text(0.0, random.Random(1)), 3000).speed >= 0.97


def test_a_request_that_gains_frees_the_next_ones_from_an_earlier_verdict() -> None:
    controller = make(CPU)
    truth = CostModel(CPU, 0.05)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    run(controller, truth, Text(0.0, random.Random(1)), 100)
    controller.close(1)
    controller.open(2, None, SpeculationMode.AUTO, 0.8)
    run(controller, truth, Text(0.97, random.Random(2)), 800, request_id=2)
    controller.close(2)
    controller.open(3, None, SpeculationMode.AUTO, 0.8)
    assert controller.state(3)[0] is SpeculationState.ACTIVE


def test_drafting_is_interrupted_now_and_then_to_see_what_a_plain_step_costs() -> None:
    controller = make(GPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    total = run(controller, CostModel(GPU, 0.05), Text(1.0, random.Random(1)), 650)
    assert 5 <= 650 - total.drafting_steps <= 15


def test_what_a_pair_came_to_is_where_the_next_request_begins() -> None:
    controller = make(CPU)
    truth = CostModel(CPU, 0.05)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    run(controller, truth, Text(0.0, random.Random(1)), 100)
    controller.close(1)
    controller.open(2, None, SpeculationMode.AUTO, 0.8)
    assert controller.state(2)[0] is SpeculationState.PARKED
    controller.open(3, None, SpeculationMode.AUTO, 0.0)
    assert controller.state(3)[0] is SpeculationState.ACTIVE


def test_zero_switches_off_and_the_users_bound_is_kept() -> None:
    controller = make(GPU)
    controller.open(1, 0, SpeculationMode.AUTO, 0.8)
    assert controller.plan(1, 0, 0, 0) == 0
    assert controller.state(1)[0] is SpeculationState.OFF
    controller.open(2, 3, SpeculationMode.AUTO, 0.8)
    total = run(controller, CostModel(GPU, 0.05), Text(1.0, random.Random(1)), 50, request_id=2)
    assert total.drafted <= 3 * 50
    controller.open(3, 1000, SpeculationMode.AUTO, 0.8)
    assert controller.plan(3, 0, 0, 0) == MAX_DRAFT


def test_a_fixed_length_is_drafted_come_what_may() -> None:
    controller = make(CPU)
    controller.open(1, 5, SpeculationMode.FIXED, 0.8)
    total = run(controller, CostModel(CPU, 0.05), Text(0.0, random.Random(1)), 100)
    assert total.drafted == 500


def test_a_busy_engine_drafts_less() -> None:
    """With many other rows in the pass, each further row costs what it adds on the steep part."""
    steep = {1: 1.0, 8: 1.1, 16: 4.0, 40: 16.0}
    controller = make(steep, draft_step_s=0.01)
    controller.open(1, None, SpeculationMode.AUTO, 0.8)
    margins = [6.0] * 6
    controller.plan(1, 0, 0, 0)
    alone = controller.choose(1, margins)
    controller.plan(1, 0, 7, 20)
    crowded = controller.choose(1, margins)
    assert crowded < alone


@pytest.mark.parametrize(
    "temperature, band", [(0.0, 0), (0.3, 1), (0.5, 1), (0.8, 2), (1.0, 2), (1.5, 3)]
)
def test_temperature_bands(temperature: float, band: int) -> None:
    assert temperature_band(temperature) == band
