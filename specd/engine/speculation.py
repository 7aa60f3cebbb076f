"""Speculation as the loop sees it: drafts before the pass, verdicts after it, and what to say.

Joins the drafter, where there is one, with the controller that decides how far it drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specd.core import NoPair, SpeculationStats
from specd.engine.backend import DecodeFailed
from specd.engine.slot import Slot
from specd.engine.speculative.controller import Controller
from specd.engine.speculative.drafter import Drafter, DraftJob

log = logging.getLogger("specd.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """What an answer says of its drafter, or of why there is none."""

    name: str | None = None
    pair_source: str | None = None
    reason: str = ""
    detail: str = ""


class Speculation:
    """drafter None: every step is plain, and the facts say why."""

    def __init__(
        self,
        controller: Controller,
        drafter: Drafter | None,
        facts: DrafterFacts,
        clock_ns: Callable[[], int],
    ) -> None:
        self._controller = controller
        self._drafter = drafter
        self._facts = facts
        self._clock_ns = clock_ns
        #: Rows each slot brought to its last pass: the best guess for its next.
        self._last_rows: dict[int, int] = {}
        #: Nanoseconds that the drafter took in the current step.
        self.draft_ns = 0

    def open(self, slot: Slot) -> None:
        """A request begins in the slot."""
        assert slot.request is not None
        n_max = 0 if self._drafter is None else slot.request.n_draft_max
        temperature = slot.request.sampling.temperature
        self._controller.open(slot.request_id, n_max, slot.request.mode, temperature)

    def close(self, slot: Slot) -> None:
        self._controller.close(slot.request_id)
        self._last_rows.pop(slot.id, None)

    def draft(self, decoding: Sequence[Slot], n_ctx: int, n_batch: int) -> dict[int, DraftJob]:
        """Drafts by slot id, at the lengths that the controller chose.

        n_ctx: tokens a slot may hold.  n_batch: rows a pass may have, shared by the slots.
        """
        self.draft_ns = 0
        if self._drafter is None or not decoding:
            return {}
        n_share = n_batch // len(decoding) - 1
        jobs = []
        for slot in decoding:
            room = min(n_ctx - slot.n_past - 1, slot.n_left - 1, n_share)
            if room > 0 and (job := self._job(slot, decoding, room)) is not None:
                jobs.append(job)
        if not jobs or not self._run(jobs):
            return {}
        by_slot = {slot.id: slot for slot in decoding}
        for job in jobs:
            n_sent = self._controller.choose(by_slot[job.slot].request_id, job.margins)
            del job.tokens[n_sent:]
        return {job.slot: job for job in jobs}

    def _job(self, slot: Slot, decoding: Sequence[Slot], room: int) -> DraftJob | None:
        """A draft to be made for the slot, or None where this step is plain for it."""
        assert self._drafter is not None
        assert slot.sampler is not None
        request_id = slot.request_id
        others = [other.id for other in decoding if other is not slot]
        n_max = self._controller.plan(
            request_id,
            self._drafter.n_missed(slot.id, len(slot.tokens)),
            len(others),
            sum(self._last_rows.get(other, 1) for other in others),
        )
        if n_max <= 0:
            return None
        return DraftJob(
            slot=slot.id,
            history=slot.tokens,
            sampler=slot.sampler,
            position=slot.tally.n_generated,
            n_max=min(n_max, room),
            extend=lambda margins: self._controller.extend(request_id, margins),
        )

    def _run(self, jobs: Sequence[DraftJob]) -> bool:
        """Let the drafter fill the jobs; False where it failed, which costs a plain step."""
        assert self._drafter is not None
        began_ns = self._clock_ns()
        n_missed = sum(self._drafter.n_missed(job.slot, len(job.history)) for job in jobs)
        try:
            n_passes = self._drafter.draft(jobs)
        except DecodeFailed as error:
            log.warning("the drafter failed, this step is plain: %s", error)
            for job in jobs:
                self._drafter.rewind(job.slot, 0)
            return False
        self.draft_ns = self._clock_ns() - began_ns
        self._controller.observe_draft(n_passes, n_missed, self.draft_ns * 1e-9)
        return True

    def observe(
        self, slot: Slot, job: DraftJob | None, n_judged: int, n_accepted: int, n_rows: int
    ) -> None:
        """The target judged n_judged tokens of the slot's draft; n_rows of the pass were its."""
        self._last_rows[slot.id] = n_rows
        if job is not None:
            self._controller.observe_step(slot.request_id, job.margins, n_judged, n_accepted)

    def observe_pass(self, n_rows: int, n_slots: int, seconds: float) -> float:
        """A pass without prompt took so long; seconds that a plain one would have taken."""
        self._controller.observe_target(n_rows, seconds)
        return self._controller.costs.target_s(n_slots)

    def rewind(self, slot: Slot, n_past: int) -> None:
        if self._drafter is not None:
            self._drafter.rewind(slot.id, n_past)

    def shift(self, slot: Slot, n_keep: int, n_discard: int) -> None:
        if self._drafter is not None:
            self._drafter.shift(slot.id, n_keep, n_discard)

    def stats(self, slot: Slot) -> SpeculationStats:
        """What the answer says of speculation; the reason is the nearest one that holds."""
        assert slot.request is not None
        state, reason = self._controller.state(slot.request_id)
        detail = ""
        if self._drafter is None:
            reason, detail = self._facts.reason, self._facts.detail
        elif slot.request.n_draft_max == 0:
            reason = NoPair.DISABLED_BY_USER
        return slot.tally.speculation(
            drafter=self._facts.name if self._drafter is not None else None,
            pair_source=self._facts.pair_source if self._drafter is not None else None,
            state=state,
            reason=str(reason),
            detail=detail,
            speedup=slot.tally.speedup(),
        )
