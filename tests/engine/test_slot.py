"""The choice of a slot by its reusable prefix, and the count of drafts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specd.engine.slot import RequestCounters, Slot, SlotState, best_slot, common_prefix


def anything(_slot: int, n_past: int) -> int:
    return n_past


tokens = st.lists(st.integers(0, 2), max_size=30)


@given(tokens, tokens)
def test_common_prefix_equals_a_token_by_token_count(a: list[int], b: list[int]) -> None:
    same = [x == y for x, y in zip(a, b, strict=False)]
    assert common_prefix(a, b) == [*same, False].index(False)


def test_the_slot_with_the_longest_reusable_prefix_is_taken() -> None:
    slots = [Slot(0, tokens=[1, 2, 3]), Slot(1, tokens=[1, 2, 3, 4]), Slot(2, tokens=[9])]
    assert best_slot(slots, [1, 2, 3, 4, 5], anything) == (slots[1], 4)


def test_a_full_match_leaves_one_token_to_evaluate() -> None:
    slots = [Slot(0, tokens=[1, 2, 3])]
    assert best_slot(slots, [1, 2, 3], anything) == (slots[0], 2)


def test_a_prefix_that_cannot_be_reused_does_not_count() -> None:
    slots = [Slot(0, tokens=[1, 2, 3, 4]), Slot(1, tokens=[1, 2])]
    exact = {0: 4, 1: 2}
    reusable = lambda slot, n_past: n_past if n_past == exact[slot] else 0  # noqa: E731
    assert best_slot(slots, [1, 2, 3, 9], reusable) == (slots[1], 2)


def test_the_least_recently_used_slot_wins_a_tie() -> None:
    slots = [Slot(0, tokens=[5], last_used=2), Slot(1, tokens=[6], last_used=1)]
    assert best_slot(slots, [7, 8], anything) == (slots[1], 0)


def test_a_busy_slot_is_never_taken() -> None:
    assert best_slot([Slot(0, state=SlotState.DECODE)], [1], anything) is None


def test_drafts_are_counted_by_depth() -> None:
    counters = RequestCounters()
    counters.count_draft(3, 2)
    counters.count_draft(1, 0)
    counters.count_draft(0, 0)
    assert counters.drafted_per_depth == [2, 1, 1]
    assert counters.accepted_per_depth == [1, 1, 0]
    assert (counters.rounds, counters.n_drafted, counters.n_accepted) == (2, 4, 2)
