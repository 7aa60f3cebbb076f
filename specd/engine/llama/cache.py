"""The kinds of llama.cpp caches: how far each can be rewound, and how.

llama.cpp's own answer is not reliable.  It agrees to rewind a recurrent state beyond its snapshots,
and a sliding window into cells that are gone, and then computes wrong results without an error.
So this module keeps track of the true limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp

from specd.engine.backend import Batch, DecodeFailed


class NativeMemory:
    """A `llama_memory_t`: the cells of a cache, by sequence and position."""

    def __init__(self, handle: object) -> None:
        self._handle = handle

    def end(self, sequence: int) -> int:
        """Return the position of the sequence's next token."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._handle, sequence)) + 1

    def begin(self, sequence: int) -> int:
        """Return the first position that every layer still holds; −1 if there is none."""
        return int(llama_cpp.llama_memory_seq_pos_min(self._handle, sequence))

    def remove(self, sequence: int, begin: int, end: int = -1) -> bool:
        """Remove positions from `begin` to `end` (−1: all after); return whether that worked."""
        return bool(llama_cpp.llama_memory_seq_rm(self._handle, sequence, begin, end))

    def clear(self, sequence: int) -> None:
        """Empty a sequence.  Raises DecodeFailed."""
        if not self.remove(sequence, 0):
            raise DecodeFailed(f"the cache of sequence {sequence} cannot be emptied")

    def copy(self, source: int, target: int, begin: int = -1) -> None:
        """Share the source's cells from `begin` on with the target.

        llama.cpp copies a recurrent state when one of the two continues.
        """
        llama_cpp.llama_memory_seq_cp(self._handle, source, target, begin, -1)

    def close_gap(self, sequence: int, begin: int, n: int) -> None:
        """Drop n tokens from `begin` on, and move the following ones forward."""
        if not self.remove(sequence, begin, begin + n):
            raise DecodeFailed(f"the cache of sequence {sequence} cannot be shifted")
        llama_cpp.llama_memory_seq_add(self._handle, sequence, begin + n, -1, -n)


class Cache(ABC):
    """The cache of one context, by slot.  Methods without docstrings are those of `Backend`."""

    n_leaves = 0
    rewind_limit: int | None = None
    has_equal_splits = False

    def __init__(self, memory: NativeMemory) -> None:
        """Wrap an empty memory."""
        self._memory = memory

    def sequence(self, slot: int) -> int:
        """Return the sequence for the slot's next rows."""
        return slot

    def branch(self, batch: Batch) -> list[Sequence[int]]:
        """Return the sequences of each row of a batch with leaves, which must be decoded next.

        Call `record_batch` after that, even if it failed.
        """
        raise NotImplementedError

    def record_batch(self, batch: Batch) -> None:  # noqa: B027 - most caches need no record
        """Note that the batch has been decoded."""

    @abstractmethod
    def reusable(self, slot: int, n_past: int) -> int: ...

    @abstractmethod
    def rewind(self, slot: int, n_past: int) -> int: ...

    def checkpoint(self, slot: int) -> None:  # noqa: B027
        pass

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        self._memory.close_gap(slot, n_keep, n_discard)


class AttentionCache(Cache):
    """A cache of attention layers: any cell may go if the window before the next token is whole.

    A leaf has a sequence of its own, which shares the cells before it with its slot's sequence.
    It keeps them from pass to pass while the slot does, so only new cells are added.
    """

    def __init__(
        self, memory: NativeMemory, window: int = 0, n_slots: int = 1, n_leaves: int = 0
    ) -> None:
        """Wrap an empty memory.

        window: tokens that attention looks back, the current one included; 0: all.
        n_leaves: most leaves of a slot; their sequences are numbered after those of all slots.
        """
        super().__init__(memory)
        self._window = window
        self.n_leaves = n_leaves
        self._leaves = [
            range(n_slots + slot * n_leaves, n_slots + (slot + 1) * n_leaves)
            for slot in range(n_slots)
        ]
        #: By a leaf's sequence: how many of the slot's first cells it shares.
        self._n_shared = dict.fromkeys(range(n_slots, n_slots * (1 + n_leaves)), 0)
        #: Sequences of the leaves of the next pass.
        self._used: list[int] = []

    def branch(self, batch: Batch) -> list[Sequence[int]]:
        ends: dict[int, list[tuple[int, int]]] = {}
        rows: list[Sequence[int]] = [()] * len(batch)
        for index in batch.leaves:
            slot = batch.slots[index]
            several = ends.setdefault(slot, [])
            sequence = self._leaves[slot][len(several)]
            several.append((batch.positions[index], sequence))
            rows[index] = (sequence,)
            n_held = self._memory.end(slot)
            if self._n_shared[sequence] < n_held:
                self._memory.copy(slot, sequence, self._n_shared[sequence])
                self._n_shared[sequence] = n_held
            self._used.append(sequence)
        for index, (slot, position) in enumerate(zip(batch.slots, batch.positions, strict=True)):
            if not rows[index]:
                beside = [sequence for end, sequence in ends.get(slot, ()) if position < end]
                rows[index] = (slot, *beside)
        return rows

    def record_batch(self, batch: Batch) -> None:  # noqa: ARG002
        for sequence in self._used:
            if not self._memory.remove(sequence, self._n_shared[sequence]):
                raise DecodeFailed(f"the cache of sequence {sequence} cannot be cut")
        self._used.clear()

    def reusable(self, slot: int, n_past: int) -> int:
        n_past = min(n_past, self._memory.end(slot))
        if self._window and self._memory.begin(slot) > max(0, n_past - self._window + 1):
            return 0
        return n_past

    def rewind(self, slot: int, n_past: int) -> int:
        n_remaining = self.reusable(slot, n_past)
        self._share(slot, n_remaining)
        if not self._memory.remove(slot, n_remaining):
            self._memory.clear(slot)
            return 0
        return n_remaining

    def _share(self, slot: int, n_most: int) -> None:
        """Limit the cells that leaves share to the slot's first n_most."""
        for sequence in self._leaves[slot]:
            if self._n_shared[sequence] > n_most:
                self._memory.remove(sequence, n_most)
                self._n_shared[sequence] = n_most

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        # llama.cpp would move cells twice that two sequences share.
        self._share(slot, 0)
        super().shift(slot, n_keep, n_discard)


class SnapshotCache(Cache):
    """A cache with a recurrent state per slot, and snapshots after the last tokens of a pass.

    llama.cpp writes snapshots for the tokens of one pass.  The state before the first token is
    gone, and a pass that reorders slots loses the snapshots of the others.  So a slot can be
    rewound once, right after its pass, and never by the whole pass.
    """

    has_equal_splits = True

    def __init__(self, memory: NativeMemory, n_snapshots: int) -> None:
        super().__init__(memory)
        self.rewind_limit = n_snapshots
        self._n_snapshots = n_snapshots
        #: Number of tokens by which each slot can be rewound now.
        self._n_snapshots_behind: dict[int, int] = {}

    def record_batch(self, batch: Batch) -> None:
        rows = Counter(batch.slots)
        self._n_snapshots_behind = {slot: min(n - 1, self._n_snapshots) for slot, n in rows.items()}

    def reusable(self, slot: int, n_past: int) -> int:
        end = self._memory.end(slot)
        if n_past >= end:
            return end
        return n_past if n_past >= end - self._n_snapshots_behind.get(slot, 0) else 0

    def rewind(self, slot: int, n_past: int) -> int:
        n_remaining = self.reusable(slot, n_past)
        if n_remaining < self._memory.end(slot):
            self._n_snapshots_behind.pop(slot, None)
            if n_remaining == 0 or not self._memory.remove(slot, n_remaining):
                self._memory.clear(slot)
                return 0
        return n_remaining


@dataclass(slots=True)
class _Fork:
    """The two sequences of a slot.

    active: the one that continues.  root: the checkpoint's.
    n_checkpointed: tokens of the checkpoint; −1: there is none.
    """

    root: int
    active: int
    n_checkpointed: int = -1


class ForkedCache(Cache):
    """A cache with a recurrent state per slot, and a copy of it at a checkpoint.

    After `checkpoint`, decoding continues on a second sequence, and a rewind drops that sequence.
    It is meant for drafters, whose passes of one token leave no snapshots.  Without a checkpoint,
    nothing can be rewound.
    """

    rewind_limit = 0
    has_equal_splits = True

    def __init__(self, memory: NativeMemory, n_slots: int, *, has_checkpoints: bool) -> None:
        """Wrap an empty memory.  has_checkpoints: whether it has 2 n_slots sequences."""
        super().__init__(memory)
        self._has_checkpoints = has_checkpoints
        self._forks = [_Fork(slot + n_slots, slot) for slot in range(n_slots)]

    def sequence(self, slot: int) -> int:
        return self._forks[slot].active

    def reusable(self, slot: int, n_past: int) -> int:
        fork = self._forks[slot]
        end = self._memory.end(fork.active)
        if n_past >= end:
            return end
        return fork.n_checkpointed if 0 <= fork.n_checkpointed <= n_past else 0

    def rewind(self, slot: int, n_past: int) -> int:
        fork = self._forks[slot]
        n_remaining = self.reusable(slot, n_past)
        if n_remaining == self._memory.end(fork.active):
            return n_remaining
        self._memory.clear(fork.active)
        if n_remaining:
            fork.active, fork.root = fork.root, fork.active
            fork.n_checkpointed = -1
        else:
            self._drop_checkpoint(slot)
        return n_remaining

    def checkpoint(self, slot: int) -> None:
        if not self._has_checkpoints:
            return
        self._drop_checkpoint(slot)
        fork = self._forks[slot]
        fork.n_checkpointed = self._memory.end(fork.active)
        self._memory.copy(fork.active, fork.root)
        fork.active, fork.root = fork.root, fork.active

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        # llama.cpp would move cells twice that two sequences share.
        self._drop_checkpoint(slot)
        self._memory.close_gap(self._forks[slot].active, n_keep, n_discard)

    def _drop_checkpoint(self, slot: int) -> None:
        fork = self._forks[slot]
        if fork.n_checkpointed >= 0:
            self._memory.clear(fork.root)
            fork.n_checkpointed = -1
