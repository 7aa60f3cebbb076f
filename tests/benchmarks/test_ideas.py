"""Test the sums that judge ideas, on small cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulator.curves import PLAIN_NS, Curve, curve
from benchmarks.simulator.ideas import (
    RecordedGuesses,
    judge,
    line_speed,
    overlap_speed,
    table,
    tree_speed,
)
from benchmarks.simulator.oracle import Oracle
from benchmarks.simulator.trace import Answer, Trace
from specd.engine.sampler import CERTAIN
from tests.benchmarks import synthetic_traces

ANSWERS = [synthetic_traces.answer(share, number) for share in (0.8, 0.5) for number in range(3)]
#: Rows cost nothing, so every guess that may be right is sent.
FREE = Curve(name="free", title="", target={1: 1.0, 17: 1.0}, draft_step=0.1, catch_up=0.0)


def never_found(answer: Answer, *, second: bool) -> Answer:
    """Return an answer with wrong guesses only; second: whether all siblings are right."""
    n = len(answer.tokens)
    return replace(
        answer,
        tokens=list(range(1000, 1000 + n)),
        right=[False] * n,
        margins=[0.05] * n,
        second_right=[second] * n,
        after_error=[[]] * n,
    )


@pytest.mark.parametrize("name", ["gpu-cheap", "cpu-steps"])
def test_the_lines_are_the_oracles(name: str) -> None:
    costs = curve(name)
    oracle = Oracle(ANSWERS, costs)
    n_tokens = sum(len(answer.tokens) - 1 for answer in ANSWERS)
    speed = n_tokens * PLAIN_NS / sum(oracle.ns(a, len(a.tokens)) for a in ANSWERS)
    assert line_speed(RecordedGuesses.of(ANSWERS), costs) == pytest.approx(speed, rel=0.02)


def test_a_sibling_that_is_right_gives_two_tokens_a_pass() -> None:
    known = RecordedGuesses.of([never_found(ANSWERS[0], second=True)])
    assert line_speed(known, FREE) == pytest.approx(1.0, abs=0.02)
    for reads_again in (False, True):
        speed = tree_speed(known, FREE, reads_again=reads_again)
        # One pass of 1.1 gives the sibling and the token after it.
        assert speed == pytest.approx(2 / 1.1, rel=0.02)
    dear = replace(FREE, target={1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 1.4})
    moved = tree_speed(known, dear, reads_again=False)
    assert tree_speed(known, dear, reads_again=True) < moved, "a row is read again"


def test_siblings_that_are_never_right_are_not_sent() -> None:
    known = RecordedGuesses.of([never_found(ANSWERS[0], second=False)])
    assert tree_speed(known, FREE, reads_again=False) == pytest.approx(1.0, abs=0.02)


def test_drafting_costs_nothing_if_every_draft_is_accepted() -> None:
    answer = replace(
        ANSWERS[0],
        tokens=list(range(1000, 1000 + 208)),
        right=[True] * 208,
        margins=[CERTAIN] * 208,
        second_right=[False] * 208,
        after_error=[[]] * 208,
    )
    known = RecordedGuesses.of([answer])
    assert line_speed(known, FREE) == pytest.approx(17 / 2.6, rel=0.1)
    assert overlap_speed(known, FREE) == pytest.approx(207 / (13 + 1.6), rel=0.05)


def test_every_curve_and_temperature_has_a_row() -> None:
    trace = Trace("invented", {}, ANSWERS[:2])
    gains = list(judge(trace))
    assert len(list(table(gains))) == 2 + len(gains)
    assert all(one.moved >= 1.0 and one.half_step >= 0.99 for one in gains)
