"""SPECD_EXACT: the passes and the reuse of caches that findings allow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specd.engine.exact_passes import ExactPasses
from specd.engine.exactness import Findings
from specd.engine.media import Media
from specd.engine.slot import Slot, SlotState

LONGEST, N_BATCH, N_CHUNK = 16, 512, 64
PIECES = ExactPasses(drafts=False, n_shared=0, n_chunk=N_CHUNK, can_reuse_all=False)
SHARING = ExactPasses(drafts=True, n_shared=8, n_chunk=N_CHUNK, can_reuse_all=True)


def read_to(n_past: int, *, n_generated: int = 0, image: int | None = None) -> Slot:
    """Return a slot that has read up to n_past.  image: where a ten-token image begins."""
    slot = Slot(0, SlotState.PREFILL, tokens=[7] * 1000, n_past=n_past)
    slot.counters.n_generated = n_generated
    if image is not None:
        slot.tokens[image : image + 10] = [-1] * 10
        slot.media = {image: Media(token=-1, n_tokens=10, n_positions=10)}
    return slot


@pytest.mark.parametrize(
    "slot, n_repeatable",
    [
        (read_to(2 * N_CHUNK), 2 * N_CHUNK),
        # The last piece of a prompt, or one up to an image: other prompts go on there.
        (read_to(2 * N_CHUNK - 1), 0),
        (read_to(70, image=70), 0),
        (read_to(80, image=70), 80),
        # Read again after a context shift.
        (read_to(2 * N_CHUNK, n_generated=1), 0),
    ],
)
def test_only_pieces_that_every_prompt_shares_are_recorded(slot: Slot, n_repeatable: int) -> None:
    PIECES.record_piece(slot)
    assert slot.n_repeatable == n_repeatable
    assert PIECES.reusable(slot, 1000) == n_repeatable


def test_a_shorter_piece_does_not_reduce_the_record() -> None:
    slot = read_to(N_CHUNK)
    PIECES.record_piece(slot)
    slot.n_past += 5
    PIECES.record_piece(slot)
    assert slot.n_repeatable == N_CHUNK


def test_only_whole_pieces_of_a_cache_are_reused() -> None:
    slot = read_to(300)
    slot.n_repeatable = 3 * N_CHUNK
    found = [PIECES.reusable(slot, n) for n in (300, 3 * N_CHUNK, 3 * N_CHUNK - 1, 70, 63)]
    assert found == [3 * N_CHUNK, 3 * N_CHUNK, 2 * N_CHUNK, N_CHUNK, 0]
    assert SHARING.reusable(slot, 299) == 299


def test_an_image_is_reused_whole_or_not_at_all() -> None:
    slot = read_to(300, image=70)
    slot.n_repeatable = 4 * N_CHUNK
    assert [PIECES.reusable(slot, n) for n in (70, 79, 80, 100, 130)] == [64, 64, 80, 80, 128]


def findings(n_invariant: int, *, parallel: bool = True, depth: bool = True) -> Findings:
    return Findings(n_invariant=n_invariant, parallel=parallel, depth=depth)


@pytest.mark.parametrize(
    "found, passes",
    [
        # The widest pass that verifies a draft has a row more than the draft.
        (findings(LONGEST), (False, LONGEST, N_BATCH, False)),
        (findings(LONGEST + 1), (True, LONGEST + 1, LONGEST + 1, True)),
        (findings(2 * N_BATCH), (True, N_BATCH, N_BATCH, True)),
        (findings(32, parallel=False), (True, 0, 32, True)),
        (findings(32, depth=False), (True, 0, 32, True)),
        (findings(1, parallel=False), (False, 0, N_BATCH, False)),
        (None, (False, 0, N_BATCH, False)),
    ],
)
def test_findings_decide_the_restrictions(
    found: Findings | None, passes: tuple[bool, int, int, bool]
) -> None:
    drafts, n_shared, n_chunk, can_reuse_all = passes
    assert ExactPasses.of(found, LONGEST, N_BATCH) == ExactPasses(
        drafts=drafts, n_shared=n_shared, n_chunk=n_chunk, can_reuse_all=can_reuse_all
    )


@pytest.mark.parametrize(
    "found, n_slots, exact",
    [
        (findings(N_BATCH), 4, (True, True, True)),
        (findings(N_BATCH, parallel=False), 4, (True, False, True)),
        (findings(N_BATCH, depth=False), 4, (True, False, True)),
        (findings(N_BATCH - 1), 4, (True, False, False)),
        (findings(N_BATCH - 1, parallel=False, depth=False), 1, (True, True, False)),
        (findings(LONGEST + 1), 1, (True, True, False)),
        (findings(LONGEST), 1, (False, True, False)),
    ],
)
def test_findings_decide_what_is_exact_without_restrictions(
    found: Findings, n_slots: int, exact: tuple[bool, bool, bool]
) -> None:
    facts = found.exactness(LONGEST, n_slots, N_BATCH)
    assert (facts.speculation, facts.parallel, facts.prompt_cache) == exact


@pytest.mark.parametrize(
    "n_drafted, slots",
    [
        ((2, 0, 2, 0), [[0, 2], [1, 3]]),
        ((1, 2, 3, 4), [[0], [1], [2], [3]]),
        ((3, 3, 3, 0), [[0, 1], [2], [3]]),
        ((9, 9, 0, 0), [[0], [1], [2, 3]]),
    ],
)
def test_slots_with_equal_row_counts_share_a_pass(
    n_drafted: Sequence[int], slots: list[list[int]]
) -> None:
    decoding = [
        Slot(number, SlotState.DECODE, tokens=[7] * 4, n_past=3) for number in range(len(n_drafted))
    ]
    drafts = {number: [8] * n for number, n in enumerate(n_drafted)}
    plans = list(SHARING.passes(decoding, drafts, (), {}))
    assert [[group.slot.id for group in plan.groups] for plan in plans] == slots
