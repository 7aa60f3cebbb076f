"""Chances of acceptance by margin and depth, learned online."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import DrafterKind
from specd.engine.speculative.acceptance import (
    DEEPER,
    PRIORS,
    Acceptance,
    Estimate,
    TextAcceptance,
)


def untaught() -> Acceptance:
    return Acceptance.of(DrafterKind.MODEL)


def observe(pair: Acceptance, confidences: Sequence[float], n_right: int, n_judged: int) -> None:
    """Observe one draft of a new text, so that the pair learns all of it."""
    TextAcceptance(pair).observe(confidences, n_right, n_judged)


@pytest.mark.parametrize("drafter", DrafterKind)
def test_initial_estimates_rise_with_confidence(drafter: DrafterKind) -> None:
    fresh = Acceptance.of(drafter)
    believed = [fresh.of_confidence(n / 20) for n in range(800)]
    assert believed == sorted(believed)
    assert set(believed) == set(PRIORS[drafter])
    assert fresh.of_depth(7) == DEEPER


def test_each_margin_learns_its_own_rate() -> None:
    learned, draw = untaught(), random.Random(1)
    for _ in range(2000):
        margin = draw.choice([0.05, 4.0])
        observe(learned, [margin], int(draw.random() < (0.4 if margin < 1 else 0.95)), 1)
    assert learned.of_confidence(0.01) == pytest.approx(0.4, abs=0.12)
    assert learned.of_confidence(3.5) == pytest.approx(0.95, abs=0.08)


def test_tokens_after_a_rejection_are_not_observed() -> None:
    learned = untaught()
    for _ in range(50):
        observe(learned, [0.05, 9.0, 9.0], 0, 1)
    assert learned.of_confidence(0.05) < 0.1
    assert learned.by_confidence[-1].weight == untaught().by_confidence[-1].weight
    assert len(learned.by_depth) == 1


def test_a_surprise_moves_all_bins() -> None:
    useless = untaught()
    for _ in range(4):
        observe(useless, [9.0], 0, 1)
    assert all(
        after.mean < before.mean
        for after, before in zip(useless.by_confidence, untaught().by_confidence, strict=True)
    )
    sure, before = untaught(), untaught().of_confidence(0.05)
    for i in range(2000):
        observe(sure, [9.0], int(i % 20 != 0), 1)
    assert sure.of_confidence(0.05) == pytest.approx(before, abs=0.25)


def test_old_observations_are_forgotten() -> None:
    estimate = Estimate(0.5)
    for _ in range(20000):
        estimate.learn(1.0 - estimate.mean)
    assert estimate.mean > 0.99
    for _ in range(400):
        estimate.learn(-estimate.mean)
    assert 0.3 < estimate.mean < 0.45


def test_one_unusual_text_does_not_spoil_the_pairs_estimates() -> None:
    pair = untaught()
    for _ in range(100):
        observe(pair, [4.0], 1, 1)
    before, odd = pair.of_confidence(4.0), TextAcceptance(pair)
    for _ in range(100):
        odd.observe([4.0], 0, 1)
    assert odd.of_confidence(4.0) < 0.2
    assert pair.of_confidence(4.0) > before - 0.3
    for _ in range(100):
        observe(pair, [4.0], 0, 1)
    assert pair.of_confidence(4.0) < before - 0.4, "many such texts must change the pair's estimate"


def test_a_few_wrong_guesses_do_not_end_all_longer_drafts() -> None:
    pair = untaught()
    observe(pair, [4.0] * 3, 1, 2)
    observe(pair, [4.0] * 3, 1, 2)
    assert pair.of_depth(1) > 0.6


def test_a_fixed_length_teaches_the_pair_nothing() -> None:
    pair = untaught()
    TextAcceptance(pair).observe([4.0, 4.0], 0, 1, teaches=False)
    assert pair == untaught()


def test_chances_by_depth_are_conditional() -> None:
    learned = untaught()
    for i in range(200):
        observe(learned, [1.0, 1.0], 2 if i % 2 else 1, 2)
    assert learned.of_depth(0) > 0.95
    assert learned.of_depth(1) == pytest.approx(0.5, abs=0.05)


def test_a_request_learns_faster_than_its_pair() -> None:
    pair = untaught()
    for _ in range(200):
        observe(pair, [1.0], 1, 1)
    before = pair.of_confidence(1.0)
    request = TextAcceptance(pair)
    assert request.of_confidence(1.0) == pytest.approx(before, abs=0.01)
    for _ in range(10):
        request.observe([1.0], 0, 1)
    assert request.of_confidence(1.0) < pair.of_confidence(1.0) - 0.1


def test_a_texts_shift_applies_to_unseen_bins() -> None:
    pair = untaught()
    harder, easier = TextAcceptance(pair), TextAcceptance(pair)
    for _ in range(12):
        harder.observe([9.0], 0, 1)
        easier.observe([0.2], 1, 1)
    assert harder.of_confidence(0.7) < pair.of_confidence(0.7) - 0.1
    assert easier.of_confidence(0.7) > pair.of_confidence(0.7) + 0.1
    assert harder.of_depth(3) < pair.of_depth(3) < easier.of_depth(3)


guesses = st.lists(
    st.tuples(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=16), st.integers(0, 16)),
    max_size=60,
)


@given(guesses, st.sampled_from([0.0, 0.3, 1.0]))
def test_chances_are_probabilities_and_rise_with_confidence(
    drafts: list[tuple[list[float], int]], mean: float
) -> None:
    pair = untaught()
    pair.by_confidence = [Estimate(min(1.0, mean + 0.01 * at)) for at in range(9)]
    request = TextAcceptance(pair)
    for confidences, n_right in drafts:
        n_judged = len(confidences)
        request.observe(confidences, min(n_right, n_judged), n_judged, teaches=False)
    believed = [request.of_confidence(margin) for margin in (0.05, 0.7, 1.2, 4.0, 9.0)]
    assert all(0.0 < chance < 1.0 for chance in believed)
    assert believed == sorted(believed)


def test_longer_lookup_matches_have_higher_chances() -> None:
    fresh = Acceptance.of(DrafterKind.LOOKUP)
    believed = [fresh.of_confidence(float(n)) for n in range(3, 40)]
    assert believed == sorted(believed)
    assert believed[0] < 0.5 < believed[-1]


def test_unjudged_tokens_teach_nothing() -> None:
    learned = untaught()
    observe(learned, [1.0, 1.0, 1.0], 0, 0)
    assert learned.by_depth == []
