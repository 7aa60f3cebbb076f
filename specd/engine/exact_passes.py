"""The division into passes under SPECD_EXACT: each row gets the same bits as when computed alone.

The findings of the self-check at load (`exactness.py`) decide which restrictions that needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specd.core import TokenId
from specd.engine import batching
from specd.engine.batching import Pass, Siblings
from specd.engine.exactness import MAX_SLOTS, Findings
from specd.engine.slot import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPasses:
    """The restrictions under SPECD_EXACT, and the passes that follow them.

    drafts: whether drafts may be verified, with several rows of a slot in a pass.
    n_shared: most rows of a pass with several slots; 0: each slot has passes of its own.
    n_chunk: prompts are read in pieces that end at multiples of this position.
    can_reuse_all: whether every cached token may be reused; otherwise only whole prompt pieces.
    """

    drafts: bool
    n_shared: int
    n_chunk: int
    can_reuse_all: bool

    @classmethod
    def of(cls, findings: Findings | None, longest: int, n_batch: int) -> ExactPasses:
        """Return what findings for a cache per slot demand; None: the check failed."""
        if findings is None:
            return cls(drafts=False, n_shared=0, n_chunk=n_batch, can_reuse_all=False)
        drafts = findings.n_invariant > longest
        shares = findings.parallel and findings.depth
        n_shared = min(findings.n_invariant if drafts else MAX_SLOTS, n_batch)
        n_chunk = min(findings.n_invariant, n_batch) if drafts else n_batch
        return cls(
            drafts=drafts,
            n_shared=n_shared if shares else 0,
            n_chunk=n_chunk,
            can_reuse_all=drafts,
        )

    def passes(
        self,
        decoding: Sequence[Slot],
        drafts: Mapping[int, Sequence[TokenId]],
        prefilling: Sequence[Slot],
        siblings: Mapping[int, Siblings],
    ) -> Iterator[Pass]:
        """Yield the passes of a step: those of all decoding slots, then one piece of one prompt."""
        # Slots with caches of their own support no siblings.
        assert not any(siblings.values())
        for slots in self._grouped_by_rows(decoding, drafts):
            yield batching.build_pass(slots, drafts, (), 0)
        waiting = [slot for slot in prefilling if slot.n_text_ahead > 0]
        if waiting:
            # The shortest goes first, so that a long prompt does not delay a short one.
            slot = min(waiting, key=lambda slot: slot.n_text_ahead)
            yield batching.build_pass((), {}, (slot,), self._end(slot) - slot.n_past)

    def _grouped_by_rows(
        self, decoding: Sequence[Slot], drafts: Mapping[int, Sequence[TokenId]]
    ) -> Iterator[list[Slot]]:
        """Group slots by row count; llama.cpp splits a batch of unequal ones."""
        by_rows: dict[int, list[Slot]] = {}
        for slot in decoding:
            by_rows.setdefault(1 + len(drafts.get(slot.id, ())), []).append(slot)
        for n_rows, slots in by_rows.items():
            n_slots = max(self.n_shared // n_rows, 1)
            for begin in range(0, len(slots), n_slots):
                yield slots[begin : begin + n_slots]

    def _end(self, slot: Slot) -> int:
        """Return where the slot's next piece ends; a prompt's last token has its own pass."""
        text_end = slot.n_past + slot.n_text_ahead
        is_whole = text_end == len(slot.tokens)
        end = min((slot.n_past // self.n_chunk + 1) * self.n_chunk, text_end - is_whole)
        return max(end, slot.n_past + 1)

    def record_piece(self, slot: Slot) -> None:
        """Record that the slot read one more piece of its prompt."""
        # After a context shift, pieces begin elsewhere than in other prompts.
        if slot.counters.n_generated == 0 and slot.n_past == self._boundary(slot, slot.n_past):
            slot.n_repeatable = slot.n_past

    def reusable(self, slot: Slot, n: int) -> int:
        """Return how many of the slot's first n tokens are cached as a new read would give them."""
        if self.can_reuse_all:
            return n
        return self._boundary(slot, min(n, slot.n_repeatable))

    def _boundary(self, slot: Slot, n: int) -> int:
        """Return the last end of a piece that every prompt with the same n first tokens shares."""
        ends = [first + part.n_tokens for first, part in slot.media.items()]
        n = next((f for f, part in slot.media.items() if f < n < f + part.n_tokens), n)
        return max([n // self.n_chunk * self.n_chunk, *(end for end in ends if end <= n)])
