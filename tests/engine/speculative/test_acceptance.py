"""What a margin and a depth say of acceptance, learned online."""

from __future__ import annotations

import random

import pytest

from specd.engine.speculative.acceptance import PRIOR, Acceptance


def test_an_untaught_estimate_is_optimistic() -> None:
    assert Acceptance().of_margin(1.0) == PRIOR
    assert Acceptance().of_depth(7) == PRIOR


def test_each_margin_learns_its_own_rate() -> None:
    learned, draw = Acceptance(), random.Random(1)
    for _ in range(2000):
        margin = draw.choice([0.05, 4.0])
        learned.observe([margin], int(draw.random() < (0.4 if margin < 1 else 0.95)))
    assert learned.of_margin(0.01) == pytest.approx(0.4, abs=0.12)
    assert learned.of_margin(3.5) == pytest.approx(0.95, abs=0.08)


def test_tokens_behind_a_refusal_teach_nothing() -> None:
    learned = Acceptance()
    for _ in range(50):
        learned.observe([0.05, 9.0, 9.0], 0)
    assert learned.of_margin(0.05) < 0.1
    assert learned.of_margin(9.0) == PRIOR
    assert len(learned.by_depth) == 1


def test_depths_are_conditional_on_those_before() -> None:
    learned = Acceptance()
    for i in range(200):
        learned.observe([1.0, 1.0], 2 if i % 2 else 1)
    assert learned.of_depth(0) > 0.95
    assert learned.of_depth(1) == pytest.approx(0.5, abs=0.05)


def test_a_request_learns_faster_than_what_it_inherits_from() -> None:
    engine = Acceptance()
    for _ in range(200):
        engine.observe([1.0], 1)
    request = engine.inherit()
    for _ in range(10):
        engine.observe([1.0], 0)
        request.observe([1.0], 0)
    assert request.of_margin(1.0) < engine.of_margin(1.0)
