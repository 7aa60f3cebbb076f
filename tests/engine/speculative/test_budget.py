"""No answer loses more time than its budget allows, whatever its drafts give."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import (
    BandHistory,
    DrafterKind,
    PairHistory,
    SpeculationMode,
    SpeculationState,
)
from specd.engine.speculative.budget import (
    BUDGET_SPENT,
    LOSS_PASSES,
    LOSS_SHARE,
    LossBudget,
    ProbeBudget,
)
from specd.engine.speculative.controller import (
    LOOKUP,
    MAX_DRAFT,
    MODEL,
    NO_DRAFTER,
    NO_LIMIT,
    Controller,
    Guess,
)
from specd.engine.speculative.cost_model import CostModel


def test_gained_time_increases_the_budget() -> None:
    budget = LossBudget()
    assert budget.left_s(1.0) == pytest.approx(2.05)
    budget.add_step(1, 3.0, 1.0)
    assert budget.left_s(1.0) == pytest.approx(0.1)
    budget.add_step(5, 2.0, 1.0)
    assert budget.left_s(1.0) == pytest.approx(2.0 + 0.05 * 7 - 2.0 + 3.0)
    budget.add_prompt(100.0)
    assert budget.left_s(1.0) == pytest.approx(2.0 + 0.05 * 107 - 2.0 + 3.0)


def test_plain_steps_earn_the_probe_budget() -> None:
    budget = ProbeBudget()
    n_steps = n_probes = 0
    while n_steps < 10_000:
        n_steps += 1
        budget.earn()
        if budget.can_afford(0.5, NO_LIMIT):
            budget.spend(0.5)
            n_probes += 1
    assert 60 <= n_probes <= 64, "0.3 % of 10,000 passes, and 2 passes at first"
    budget.spend(-1.0)
    assert not budget.can_afford(0.9, NO_LIMIT), "some steps lie between two probes"
    for _ in range(4):
        budget.earn()
    assert budget.can_afford(0.9, NO_LIMIT), "a probe's gain is available to later probes"
    budget.spend(-1000.0)
    assert not budget.can_afford(13.0, NO_LIMIT), "the gain is bounded"
    assert not budget.can_afford(0.9, 16), "an answer so short cannot win that back"


def test_a_spent_budget_is_reported_until_it_recovers() -> None:
    """The first row costs one and a half passes here, so that one refused draft is all."""
    controller = Controller(CostModel({1: 1.0, 2: 2.5, 17: 2.6}, 0.05, 0.0), None)
    controller.open(1, None, SpeculationMode.AUTO, 0.0, [MODEL])
    n_max = controller.plan(1, 0, 1)
    assert n_max > 0
    margins = [9.0] * n_max
    ((_, n),) = controller.choose([(1, margins)])
    assert n == n_max
    controller.observe_step(1, MODEL, n, 0, [(MODEL, margins, 0, 1)])
    assert controller.plan(1, 0, 1) == 0
    assert controller.state(1) == (SpeculationState.PARKED, BUDGET_SPENT)
    for _ in range(60):
        controller.choose([(1, [])])
        controller.observe_step(1, NO_DRAFTER, 0, 0, [])
        controller.plan(1, 0, 1)
    assert controller.state(1) == (SpeculationState.ACTIVE, "")


costs = st.builds(
    lambda first, steps, draft, read: CostModel(
        {1: first, **{2 + i: first * (1.0 + sum(steps[: i + 1])) for i in range(len(steps))}},
        first * draft,
        first * read,
    ),
    st.floats(0.001, 1.0),
    st.lists(st.floats(0.0, 2.0), min_size=40, max_size=40),
    st.floats(0.0, 3.0),
    st.floats(0.0, 0.1),
)
bins = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1000.0)), max_size=12).map(tuple)
histories = st.lists(
    st.builds(
        BandHistory,
        drafter=st.sampled_from(DrafterKind),
        band=st.integers(0, 4),
        by_confidence=bins,
        by_depth=bins,
        parked=st.sampled_from(["", "does_not_pay", "low_acceptance", "what is this"]),
        gain=st.none() | st.floats(1e-6, 1e6),
        n_requests=st.integers(0, 10**6),
    ),
    max_size=4,
).map(lambda several: PairHistory(bands=tuple(several)))
#: One request in one step: confidences of the guesses, how many are right, tokens found.
step = st.tuples(
    st.lists(st.floats(0.0, 20.0), min_size=MAX_DRAFT, max_size=MAX_DRAFT),
    st.integers(0, MAX_DRAFT),
    st.integers(0, MAX_DRAFT),
)


@settings(deadline=None)
@given(costs, histories, st.none() | st.floats(0.0, 1.0), st.data(), st.sampled_from([1, 2, 4]))
def test_no_answer_loses_more_than_its_budget(
    costs: CostModel,
    history: PairHistory,
    threshold: float | None,
    data: st.DataObject,
    n_slots: int,
) -> None:
    """Each answers for its share; costs do not change, so that the bound is exact."""
    controller = Controller(costs, threshold, history)
    plain_s = costs.target_s(n_slots) / n_slots
    taken_s, tokens = [0.0] * n_slots, [0] * n_slots
    missed = [data.draw(st.integers(0, 400)) for _ in range(n_slots)]
    for request_id in range(n_slots):
        controller.open(request_id, None, SpeculationMode.AUTO, 0.8, [MODEL, LOOKUP])
    for _ in range(data.draw(st.integers(1, 30))):
        steps = data.draw(st.lists(step, min_size=n_slots, max_size=n_slots))
        drafts: list[tuple[int, list[float]]] = []
        for request_id, (confidences, _, n_found) in enumerate(steps):
            n_max = controller.plan(request_id, missed[request_id], n_slots, confidences[:n_found])
            margins = confidences[: min(n_max, 1)]
            while margins and len(margins) < n_max and controller.extend(request_id, margins):
                margins = confidences[: len(margins) + 1]
            drafts.append((request_id, margins))
        sent = controller.choose(drafts)
        n_rows = sum(n for _, n in sent)
        added_s = costs.target_s(n_slots + n_rows) - costs.target_s(n_slots)
        for (request_id, margins), (sent_by, n), (confidences, n_right, n_found) in zip(
            drafts, sent, steps, strict=True
        ):
            n_accepted = min(n, n_right)
            guesses: list[Guess] = [(LOOKUP, confidences[:n_found], 0, 0)]
            if margins:
                guesses.append((MODEL, margins, min(n_right, len(margins)), len(margins)))
                taken_s[request_id] += costs.reading_s(missed[request_id])
                missed[request_id] = 0
            for depth in range(len(margins)):
                sharing = sum(len(others) > depth for _, others in drafts)
                taken_s[request_id] += costs.draft_s(1) / sharing
            taken_s[request_id] += plain_s + (added_s * n / n_rows if n else 0.0)
            tokens[request_id] += n_accepted + 1
            controller.observe_step(request_id, sent_by, n, n_accepted, guesses)
            allowed_s = (1.0 + LOSS_SHARE) * tokens[request_id] * plain_s + LOSS_PASSES * plain_s
            assert taken_s[request_id] <= allowed_s * (1.0 + 1e-9)
