"""When the stall detector gives an engine up, counted in checks."""

from __future__ import annotations

import math

import pytest

from specd.runner.stall_detector import CHECK_INTERVAL_S, MAX_STOPPED_CHECKS, StallDetector


def n_looks(stall_detector: StallDetector, most: int = 1000) -> int:
    """Return the number of checks without progress until the engine counts as stalled."""
    return next(n for n in range(1, most) if stall_detector.check(has_progressed=False))


@pytest.mark.parametrize("limit_s", [0.01, 1.0, 7.0, 50.0, 300.0, 301.0])
def test_an_engine_without_progress_stalls_at_its_limit_and_not_before(limit_s: float) -> None:
    stall_detector = StallDetector(limit_s, lambda: False)
    n = n_looks(stall_detector)
    assert n >= 10
    assert (
        (n - 1) * stall_detector.check_interval_s
        < limit_s
        <= n * stall_detector.check_interval_s * (1 + 1e-6)
    )
    assert stall_detector.check_interval_s <= CHECK_INTERVAL_S


def test_progress_resets_the_detector() -> None:
    stall_detector = StallDetector(10.0, lambda: False)
    for _ in range(9):
        assert not stall_detector.check(has_progressed=False)
    assert not stall_detector.check(has_progressed=True)
    assert n_looks(stall_detector) == 10


def test_a_stopped_process_stalls_sooner() -> None:
    stall_detector = StallDetector(300.0, lambda: True)
    said = [stall_detector.check(has_progressed=False) for _ in range(MAX_STOPPED_CHECKS)]
    assert said == [""] * (MAX_STOPPED_CHECKS - 1) + ["it was stopped by a signal for 30 s"]


def test_a_process_that_was_stopped_and_continues_does_not_stall() -> None:
    """A daemon that resumes before its engine sees it stopped only once."""
    stopped = iter([True] * (MAX_STOPPED_CHECKS - 1) + [False] + [True] * MAX_STOPPED_CHECKS)
    assert n_looks(StallDetector(300.0, lambda: next(stopped))) == 2 * MAX_STOPPED_CHECKS


def test_an_infinite_limit_never_stalls() -> None:
    stall_detector = StallDetector(math.inf, lambda: True)
    assert not any(stall_detector.check(has_progressed=False) for _ in range(1000))
