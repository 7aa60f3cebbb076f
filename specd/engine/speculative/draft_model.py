"""A small model as drafter.  It samples with the same noise as the target.

Its cache keeps the drafted tokens that the target accepted, so none is evaluated twice.  While a
slot does not draft, its cache falls behind; it catches up before the next draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specd.core import TokenId
from specd.engine.backend import Backend, Batch, Vocabulary
from specd.engine.sampler import NO_TOKEN, Row, Sampler


@dataclass(slots=True)
class DraftJob:
    """A draft in progress for one slot.

    history: prompt and answer so far; neither model has evaluated its last token yet.
    position: index, among the generated tokens, of the first one to draft.
    extend: called with the margins so far before each further token; False ends the draft.
    second_best: for each drafted token the drafter's second-best, or NO_TOKEN.
    """

    slot: int
    history: Sequence[TokenId]
    sampler: Sampler
    position: int
    n_max: int
    extend: Callable[[list[float]], bool]
    tokens: list[TokenId] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    second_best: list[TokenId] = field(default_factory=list)


class DraftModel:
    """A drafter for several slots: one pass per depth, shared by all slots that still draft."""

    def __init__(
        self,
        backend: Backend,
        vocabulary: Vocabulary,
        n_slots: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Draft for a target with this vocabulary: no ids beyond it, and none after its ends."""
        self._backend = backend
        self._clock_ns = clock_ns
        #: Nanoseconds of all passes so far, without the work in Python.
        self.native_ns = 0
        self._vocabulary = vocabulary
        self._n_vocab = min(backend.n_vocab, vocabulary.n_vocab)
        # llama.cpp would refuse ids that the drafter lacks, such as a larger model's turn markers.
        # They become the drafter's last id, which in most vocabularies is a control token as well.
        self._last_id = backend.n_vocab - 1
        self._n_past = [0] * n_slots

    def n_missed(self, slot: int, n_history: int) -> int:
        """Return how many tokens the drafter has yet to read, without the last of the history."""
        return n_history - 1 - self._n_past[slot]

    def draft(self, jobs: Sequence[DraftJob]) -> int:
        """Fill in tokens and margins of all jobs together; return the number of passes."""
        rows = self._read_history(jobs)
        n_passes = 1
        while True:
            active_jobs = [
                (job, row) for job, row in zip(jobs, rows, strict=True) if row is not None
            ]
            for job, row in active_jobs:
                self._guess(job, row)
            active_rows = [job for job, _ in active_jobs if self._should_continue(job)]
            if not active_rows:
                return n_passes
            batch = Batch()
            for job in active_rows:
                if len(job.tokens) == 1:
                    self._backend.checkpoint(job.slot)
                n_past = self._n_past[job.slot]
                batch.add(job.tokens[-1], n_past, job.slot, wants_logits=True)
                self._n_past[job.slot] += 1
            self._decode(batch)
            n_passes += 1
            at = {job.slot: i for i, job in enumerate(active_rows)}
            rows = [self._backend.row(at[j.slot]) if j.slot in at else None for j in jobs]

    def rewind(self, slot: int, n_past: int) -> None:
        """Note that only the first n_past tokens of the slot's history are unchanged."""
        if self._n_past[slot] > n_past:
            self._n_past[slot] = self._backend.rewind(slot, n_past)

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        """Remove n_discard tokens after the first n_keep from the slot's history."""
        if self._n_past[slot] < n_keep + n_discard or not self._backend.can_shift:
            self.rewind(slot, n_keep)
            return
        self._backend.shift(slot, n_keep, n_discard)
        self._n_past[slot] -= n_discard

    def _read_history(self, jobs: Sequence[DraftJob]) -> list[Row | None]:
        """Evaluate the tokens that each slot's cache lacks; return each history's last row."""
        rows: list[Row | None] = [None] * len(jobs)
        batch = Batch()
        ends: dict[int, int] = {}
        for at, job in enumerate(jobs):
            n_past = self._n_past[job.slot]
            # Set before any pass: a failed pass may leave cells behind, which a rewind removes.
            self._n_past[job.slot] = len(job.history)
            for i in range(n_past, len(job.history)):
                if len(batch) == self._backend.n_batch:
                    self._decode_rows(batch, ends, rows)
                    batch, ends = Batch(), {}
                last = i == len(job.history) - 1
                token = min(job.history[i], self._last_id)
                index = batch.add(token, i, job.slot, wants_logits=last)
                if last:
                    ends[at] = index
        self._decode_rows(batch, ends, rows)
        return rows

    def _decode_rows(self, batch: Batch, ends: dict[int, int], rows: list[Row | None]) -> None:
        self._decode(batch)
        for at, index in ends.items():
            # A full batch may be followed by another pass, which overwrites the logits.
            row = self._backend.row(index)
            rows[at] = row.copy() if len(batch) == self._backend.n_batch else row

    def _decode(self, batch: Batch) -> None:
        began_ns = self._clock_ns()
        self._backend.decode(batch)
        self.native_ns += self._clock_ns() - began_ns

    def _guess(self, job: DraftJob, row: Row) -> None:
        history: Sequence[TokenId] = job.history
        if job.tokens and job.sampler.reads_history:
            # Penalties treat the draft as part of the answer.
            history = [*history, *job.tokens]
        depth = len(job.tokens)
        choice = job.sampler.sample(row[: self._n_vocab], history, job.position + depth)
        job.tokens.append(choice.token)
        job.margins.append(choice.margin)
        # A sibling that ends the answer would give no further token.
        is_end = choice.second != NO_TOKEN and self._vocabulary.is_eog(choice.second)
        job.second_best.append(NO_TOKEN if is_end else choice.second)

    def _should_continue(self, job: DraftJob) -> bool:
        if len(job.tokens) >= job.n_max or self._vocabulary.is_eog(job.tokens[-1]):
            return False
        return job.extend(job.margins)
