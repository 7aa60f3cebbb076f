"""When an engine is given up: counted in looks."""

from __future__ import annotations

import math

import pytest

from specd.runner.stall_detector import CHECK_INTERVAL_S, MAX_STOPPED_CHECKS, StallDetector


def n_looks(stall_detector: StallDetector, most: int = 1000) -> int:
    """Looks without a move until it is given up."""
    return next(n for n in range(1, most) if stall_detector.check(has_progressed=False))


@pytest.mark.parametrize("limit_s", [0.01, 1.0, 7.0, 50.0, 300.0, 301.0])
def test_nothing_moves_for_the_limit_and_no_less(limit_s: float) -> None:
    stall_detector = StallDetector(limit_s, lambda: False)
    n = n_looks(stall_detector)
    assert n >= 10
    assert (
        (n - 1) * stall_detector.check_interval_s
        < limit_s
        <= n * stall_detector.check_interval_s * (1 + 1e-6)
    )
    assert stall_detector.check_interval_s <= CHECK_INTERVAL_S


def test_a_move_begins_it_anew() -> None:
    stall_detector = StallDetector(10.0, lambda: False)
    for _ in range(9):
        assert not stall_detector.check(has_progressed=False)
    assert not stall_detector.check(has_progressed=True)
    assert n_looks(stall_detector) == 10


def test_one_that_is_stopped_is_given_up_sooner() -> None:
    stall_detector = StallDetector(300.0, lambda: True)
    said = [stall_detector.check(has_progressed=False) for _ in range(MAX_STOPPED_CHECKS)]
    assert said == [""] * (MAX_STOPPED_CHECKS - 1) + ["it was stopped by a signal for 30 s"]


def test_one_that_was_stopped_and_goes_on_is_not_given_up() -> None:
    """A daemon that was stopped with its engine, and wakes first, sees it stopped just once."""
    stopped = iter([True] * (MAX_STOPPED_CHECKS - 1) + [False] + [True] * MAX_STOPPED_CHECKS)
    assert n_looks(StallDetector(300.0, lambda: next(stopped))) == 2 * MAX_STOPPED_CHECKS


def test_for_ever_is_for_ever() -> None:
    stall_detector = StallDetector(math.inf, lambda: True)
    assert not any(stall_detector.check(has_progressed=False) for _ in range(1000))
