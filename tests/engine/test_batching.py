"""The rows of a pass and their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specd.engine.batching import build_pass
from specd.engine.slot import Slot, SlotState

N_BATCH = 32


def decoding(number: int) -> Slot:
    return Slot(number, SlotState.DECODE, tokens=[7] * 4, n_past=3)


def prefilling(number: int, n_tokens: int) -> Slot:
    return Slot(number, SlotState.PREFILL, tokens=[7] * n_tokens)


def test_the_last_token_of_a_prompt_does_not_change_the_order_of_slots() -> None:
    new_pass = build_pass([decoding(1), decoding(2)], {}, [prefilling(0, 1)], N_BATCH)
    assert new_pass.batch.slots == [0, 1, 2]
    assert [chunk.slot.id for chunk in new_pass.chunks] == [0]


@given(st.lists(st.integers(-40, 8), min_size=1, max_size=4))
def test_rows_are_in_order_of_length_and_of_slots(lengths: list[int]) -> None:
    """Below zero: tokens of a prompt; else those of a draft."""
    slots = [decoding(at) if n >= 0 else prefilling(at, -n) for at, n in enumerate(lengths)]
    drafts = {at: [5] * n for at, n in enumerate(lengths) if n > 0}
    busy = [slot for slot in slots if slot.state is SlotState.DECODE]
    prompts = [slot for slot in slots if slot.state is SlotState.PREFILL]
    new_pass = build_pass(busy, drafts, prompts, N_BATCH + 4 * 9)
    seen = list(dict.fromkeys(new_pass.batch.slots))
    counts = {at: new_pass.batch.slots.count(at) for at in seen}
    assert seen == sorted(seen, key=lambda at: (counts[at], at))
    assert all(counts[slot.id] == 1 + lengths[slot.id] for slot in busy)
    assert sum(counts.values()) <= N_BATCH + 4 * 9
    assert {group.slot.id for group in new_pass.groups} == {slot.id for slot in busy}
