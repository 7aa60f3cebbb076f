"""One target pass for many slots: verification groups first, then as much prompt as still fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specd.core import TokenId
from specd.engine.backend import Batch
from specd.engine.slot import Slot


@dataclass(slots=True)
class Group:
    """A slot's rows in the pass: [last, d1 … dk], the first of them at index `first`."""

    slot: Slot
    draft: Sequence[TokenId]
    first: int


@dataclass(slots=True)
class Chunk:
    """A piece of a slot's prompt; `last_row` is the row its first token is drawn from, or −1."""

    slot: Slot
    n_tokens: int
    last_row: int


@dataclass(slots=True)
class Pass:
    """drafted: whether time was spent on drafts, sent or not."""

    batch: Batch = field(default_factory=Batch)
    groups: list[Group] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    drafted: bool = False


class SharedPasses:
    """One pass for all that is to be done: the fastest way, and the usual one."""

    def __init__(self, n_batch: int) -> None:
        self._n_batch = n_batch

    def passes(
        self,
        decoding: Sequence[Slot],
        drafts: Mapping[int, Sequence[TokenId]],
        prefilling: Sequence[Slot],
    ) -> Iterator[Pass]:
        """The passes of a step; each is to be run before the next is asked for."""
        plan = build(decoding, drafts, prefilling, self._n_batch)
        if len(plan.batch):
            yield plan

    def record_piece(self, slot: Slot) -> None:
        """Record that the slot read one more piece of its prompt."""

    def reusable(self, slot: Slot, n: int) -> int:  # noqa: ARG002
        """How many of the slot's first n tokens may be taken from its cache."""
        return n


def build(
    decoding: Sequence[Slot],
    drafts: Mapping[int, Sequence[TokenId]],
    prefilling: Sequence[Slot],
    n_batch: int,
) -> Pass:
    """drafts: slot id → drafted tokens.  A group is never split; prompts share what room is left.

    Groups come in order of length: models that take only equal ones at once need fewer passes so.
    Each waiting prompt gets an equal share first, so that a long one does not hold up a short one.
    """
    plan = Pass()
    if drafts:
        decoding = sorted(decoding, key=lambda slot: len(drafts.get(slot.id, ())))
    for slot in decoding:
        draft = drafts.get(slot.id, ())
        first = plan.batch.add(slot.tokens[-1], slot.n_past, slot.id, wants_logits=True)
        for depth, token in enumerate(draft, start=1):
            plan.batch.add(token, slot.n_past + depth, slot.id, wants_logits=True)
        plan.groups.append(Group(slot, draft, first))
    waiting = sorted(prefilling, key=lambda slot: slot.n_text_ahead)
    for at, slot in enumerate(waiting):
        room = (n_batch - len(plan.batch)) // (len(waiting) - at)
        n_tokens = min(slot.n_text_ahead, room)
        if n_tokens > 0:
            plan.chunks.append(_add_chunk(plan.batch, slot, n_tokens))
    return plan


def _add_chunk(batch: Batch, slot: Slot, n_tokens: int) -> Chunk:
    end = slot.n_past + n_tokens
    whole = end == len(slot.tokens)
    last_row = -1
    for position in range(slot.n_past, end):
        wants = whole and position == end - 1
        index = batch.add(slot.tokens[position], position, slot.id, wants_logits=wants)
        last_row = index if wants else last_row
    return Chunk(slot, n_tokens, last_row)
