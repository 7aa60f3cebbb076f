"""Costs: measured, interpolated, and updated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.engine.speculative.cost_model import CostModel


def test_measured_widths_are_returned_and_others_interpolated() -> None:
    costs = CostModel({1: 1.0, 4: 4.0, 8: 6.0})
    assert costs.target_s(1) == 1.0
    assert costs.target_s(2) == 2.0
    assert costs.target_s(6) == 5.0
    assert costs.target_s(12) == 8.0


def test_costs_beyond_the_widest_follow_the_upper_half() -> None:
    """The last measured width may come just after a cost step."""
    costs = CostModel({1: 1.0, 8: 2.0, 16: 3.0, 17: 4.0})
    assert costs.target_s(33) == pytest.approx(4.0 + 16 * 2.0 / 9)


def test_an_interpolated_width_is_learned_quickly() -> None:
    costs = CostModel({1: 1.0, 17: 4.0})
    for _ in range(3):
        costs.observe_target(34, 5.0)
    assert costs.target_s(34) == pytest.approx(5.0, rel=0.2)


def test_noise_never_makes_a_wider_pass_cheaper_than_a_narrow_one() -> None:
    costs = CostModel({1: 5.0, 2: 0.9, 4: 1.0})
    assert costs.target_s(1) == costs.target_s(2) == 0.9
    for _ in range(100):
        costs.observe_target(4, 0.8)
    assert costs.target_s(1) <= costs.target_s(3) <= costs.target_s(4)


@given(st.integers(1, 40), st.floats(1.0, 3.0))
def test_a_changed_cost_is_learned(width: int, factor: float) -> None:
    costs = CostModel({1: 1.0, 17: 3.0})
    truth = costs.target_s(width) * factor
    for _ in range(150):
        costs.observe_target(width, truth)
    assert costs.target_s(width) == pytest.approx(truth, rel=0.05)


def test_one_outlier_changes_an_estimate_little() -> None:
    costs = CostModel({1: 1.0, 4: 2.0})
    costs.observe_target(4, 500.0)
    assert costs.target_s(4) < 2.5
    assert costs.target_s(1) < 1.1


def test_costs_measured_on_a_busy_machine_are_corrected_by_one_fast_pass() -> None:
    costs = CostModel({1: 100.0, 4: 200.0})
    costs.observe_target(1, 1.0)
    assert costs.target_s(1) == pytest.approx(1.0)
    assert costs.target_s(4) == pytest.approx(2.0)


def test_reading_measured_on_a_busy_machine_is_corrected_with_drafting() -> None:
    costs = CostModel({1: 1.0}, draft_step_s=100.0, catch_up_s=10.0)
    costs.observe_draft(1, 0, 1.0)
    assert costs.draft_s(1) == pytest.approx(1.0)
    assert costs.reading_s(100) == pytest.approx(10.0)


def test_missed_tokens_have_a_cost_of_their_own() -> None:
    costs = CostModel({1: 1.0}, draft_step_s=0.1, catch_up_s=0.01)
    assert costs.draft_s(0, 100) == 0.0
    assert costs.draft_s(3, 100) == pytest.approx(1.3)
    for _ in range(200):
        costs.observe_draft(1, 1000, 20.1)
    assert costs.draft_s(1) == pytest.approx(0.1)
    assert costs.draft_s(1, 1000) == pytest.approx(20.1, rel=0.05)
    for _ in range(200):
        costs.observe_draft(4, 1, 1.2)
    assert costs.draft_s(4, 1) == pytest.approx(1.2, rel=0.05)


def test_a_catch_up_cost_of_zero_is_corrected() -> None:
    costs = CostModel({1: 1.0}, draft_step_s=0.1, catch_up_s=0.0)
    for _ in range(10):
        costs.observe_draft(2, 1000, 5.2)
    assert costs.draft_s(2, 1000) == pytest.approx(5.2, rel=0.05)


def test_a_wide_pass_cheaper_than_guessed_does_not_make_plain_ones_cheap() -> None:
    costs = CostModel({1: 1.0})
    costs.observe_target(17, 1.1)
    assert costs.target_s(1) == pytest.approx(1.0)
    assert costs.target_s(17) == pytest.approx(1.1)


def test_one_outlier_changes_the_catch_up_cost_little() -> None:
    costs = CostModel({1: 1.0}, draft_step_s=0.1, catch_up_s=0.01)
    costs.observe_draft(1, 1000, 1e6)
    # A token that is read in a batch never costs as much as one that is drafted.
    assert costs.draft_s(1, 1000) < costs.draft_s(1000) / 2


LONGEST = 16
SHARES = st.floats(0.0, 1.0)
#: What each further row adds to a pass, and a draft step, in passes of one row.
ROWS = st.lists(st.floats(0.0, 1.5), min_size=LONGEST, max_size=LONGEST)
STEPS = st.floats(0.0, 1.2)


def costs_of(rows: list[float], step: float, plain_s: float = 1.0) -> CostModel:
    widths = {1 + n: plain_s * (1.0 + sum(rows[:n])) for n in range(LONGEST + 1)}
    return CostModel(widths, plain_s * step)


def gain(costs: CostModel, k: int, share: float) -> float:
    """Return tokens per second ÷ plain ones of drafts of k tokens, a share of them accepted."""
    seconds = costs.draft_s(k) + costs.target_s(k + 1)
    return (1.0 + share * k) * costs.target_s(1) / seconds


@given(ROWS, STEPS, st.floats(1e-4, 10.0), SHARES, st.integers(1, LONGEST))
def test_drafts_lose_below_the_break_even_and_some_length_gains_above(
    rows: list[float], step: float, plain_s: float, share: float, longest: int
) -> None:
    costs = costs_of(rows, step, plain_s)
    needed = costs.break_even(longest)
    assert needed is not None
    best = max(gain(costs, k, share) for k in range(1, longest + 1))
    if share < needed - 1e-6:
        assert best < 1.0
    if share > needed + 1e-6:
        assert best > 1.0


@given(ROWS, STEPS, st.integers(0, LONGEST - 1), st.floats(0.0, 2.0), st.integers(1, LONGEST))
def test_higher_costs_never_lower_the_break_even(
    rows: list[float], step: float, at: int, more: float, longest: int
) -> None:
    needed = costs_of(rows, step).break_even(longest)
    assert needed is not None
    dearer = [*rows[:at], rows[at] + more, *rows[at + 1 :]]
    for other in (costs_of(dearer, step), costs_of(rows, step + more)):
        assert (other.break_even(longest) or 0.0) >= needed - 1e-9


def test_the_break_even_is_that_of_the_best_length() -> None:
    # A row more costs half a pass, three more cost three quarters: k = 3 needs (0.3 + 0.75) / 3.
    costs = CostModel({1: 2.0, 2: 3.0, 4: 3.5}, draft_step_s=0.2)
    assert costs.break_even(1) == pytest.approx(0.6)
    assert costs.break_even(3) == pytest.approx(0.35)


def test_the_break_even_is_one_if_no_draft_can_pay() -> None:
    assert CostModel({1: 1.0, 17: 17.0}, draft_step_s=2.0).break_even(LONGEST) == 1.0


def test_the_break_even_without_a_draft_model_waits_for_a_wide_pass() -> None:
    costs = CostModel({1: 1.0})
    assert costs.break_even(LONGEST) is None
    costs.observe_target(5, 2.0)
    needed = costs.break_even(4)
    assert needed is not None
    assert needed == pytest.approx((costs.target_s(5) / costs.target_s(1) - 1.0) / 4)
    assert costs.break_even(0) is None


def test_costs_of_a_busy_load_are_corrected() -> None:
    """Only passes of the target are seen while nothing is drafted."""
    costs = CostModel({1: 10.0, 17: 20.0}, draft_step_s=5.0, catch_up_s=0.5)
    costs.observe_target(1, 1.0)
    assert costs.draft_s(1) == pytest.approx(0.5)
    assert costs.reading_s(10) == pytest.approx(0.5)
