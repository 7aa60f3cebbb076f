"""Speculation for the loop: drafts before the pass, statistics after it and at the end.

It connects the drafters, which are prompt lookup and, if there is one, a draft model, with the
controller that chooses drafter and length.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specd.core import BUILTIN, DrafterKind, NoPair, SpeculationState, SpeculationStats, TokenId
from specd.engine.backend import DecodeFailed
from specd.engine.sampler import NO_TOKEN, NonFiniteLogits
from specd.engine.slot import Slot
from specd.engine.speculative.budget import BUDGET_SPENT
from specd.engine.speculative.controller import NO_LIMIT, Controller, Guess
from specd.engine.speculative.draft_model import DraftJob, DraftModel
from specd.engine.speculative.draft_proposal import SiblingLimits
from specd.engine.speculative.drafter_stats import DOES_NOT_PAY, LOW_ACCEPTANCE
from specd.engine.speculative.prompt_lookup import LookupMatch, PromptLookup
from specd.engine.speculative.verifier import count_right

log = logging.getLogger("specd.engine")

#: Name of the drafter without a model in the statistics of answers.
LOOKUP_NAME = "prompt lookup"

_PARKED_REASONS = {
    DOES_NOT_PAY: "its drafts take longer than they save",
    LOW_ACCEPTANCE: "too few of its drafts are accepted",
    BUDGET_SPENT: "its drafts have cost this answer as much time as its limit allows",
}

#: The same, for a drafter that would not pay even if all its drafts were accepted.
_NO_DRAFT_PAYS = "its drafts take longer than they save, even if every drafted token is accepted"

#: Why nothing was drafted although no drafter is parked.
ANSWER_TOO_SHORT = "answer_too_short"
PROMPT_TOO_LONG = "prompt_too_long"
NO_GOOD_GUESS = "no_good_guess"
DRAFTER_FAILED = "drafter_failed"
_NO_DRAFT_REASONS = {
    PROMPT_TOO_LONG: "the drafter would need longer to read the prompt than its drafts should save",
    ANSWER_TOO_SHORT: "the answer was too short for drafting to pay",
    NO_GOOD_GUESS: "no draft was likely enough to be accepted",
    DRAFTER_FAILED: "the drafter failed; see the engine's log",
}

#: Answers with no more tokens than this are too short for the drafter to read the prompt.
_MIN_ANSWER_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """Facts on the draft model for the statistics of answers, or why there is none.

    threshold: the user's acceptance threshold; None: report the break-even acceptance.
    """

    name: str | None = None
    pair_source: str | None = None
    reason: str = ""
    detail: str = ""
    threshold: float | None = None


@dataclass(slots=True)
class _Guesses:
    """The drafts for one slot in one step.

    found: prompt lookup's.  job: the draft model's.  sent_by, sent: the draft that is verified.
    siblings: those that are verified too, by the index of their drafted token.
    n_emitted: tokens that the step added to the answer.  n_room: most rows of a draft.
    """

    found: LookupMatch
    job: DraftJob | None = None
    sent_by: str = ""
    sent: Sequence[TokenId] = ()
    siblings: Mapping[int, TokenId] = field(default_factory=dict)
    n_emitted: int = 0
    n_room: int = 0


class Speculation:
    """The drafters of an engine and the state of their drafts in the current step."""

    def __init__(
        self,
        controller: Controller,
        drafter: DraftModel | None,
        facts: DrafterFacts,
        clock_ns: Callable[[], int],
        *,
        n_slots: int,
        rewind_limit: int | None = None,
        has_equal_splits: bool = False,
        n_leaves: int = 0,
    ) -> None:
        """Set up without requests.

        drafter: None: prompt lookup alone; the facts say why.
        rewind_limit, has_equal_splits, n_leaves: the target's; a rewind_limit of 0: no drafts.
        """
        self.controller = controller
        self.drafter = drafter
        self._lookup = PromptLookup(n_slots) if rewind_limit != 0 else None
        longest = controller.longest
        self._longest = longest if rewind_limit is None else min(longest, rewind_limit)
        self._has_equal_splits = has_equal_splits
        self._n_leaves = n_leaves
        self._facts = facts
        self._clock_ns = clock_ns
        self._guesses: dict[int, _Guesses] = {}
        #: By slot id: why nothing was drafted for its request, as long as nothing is.
        self._no_draft_reason: dict[int, str] = {}
        #: Nanoseconds of the draft model in the current step, and of its passes alone.
        self.draft_ns = self.draft_native_ns = 0

    def open(self, slot: Slot) -> None:
        request = slot.request
        assert request is not None
        available = {DrafterKind.MODEL: self.drafter, DrafterKind.LOOKUP: self._lookup}
        self.controller.open(
            slot.request_id,
            request.n_draft_max,
            request.mode,
            request.sampling.temperature,
            [kind for kind in request.drafters if available[kind] is not None],
        )
        self._no_draft_reason[slot.id] = ANSWER_TOO_SHORT
        if self._lookup is not None:
            self._lookup.begin(slot.id)

    def close(self, slot: Slot) -> None:
        self.controller.close(slot.request_id)
        self._guesses.pop(slot.id, None)

    # ------------------------------------------------------------------ before the pass

    def draft(self, decoding: Sequence[Slot], n_batch: int) -> dict[int, Sequence[TokenId]]:
        """Return the drafted tokens by slot id, cut as the controller chose.

        n_batch: most rows of a pass, shared by the slots.
        """
        self.draft_ns = self.draft_native_ns = 0
        self._guesses.clear()
        if self._lookup is None or not any(map(_wants_drafts, decoding)):
            # Nothing here may draft: skip the rest, which is slow while CPU caches are cold.
            return {}
        jobs = []
        for slot in decoding:
            room = self._max_draft_rows(slot, n_batch // len(decoding))
            if (job := self._plan(slot, len(decoding), room)) is not None:
                jobs.append(job)
        if jobs and self._run(jobs):
            for job in jobs:
                self._guesses[job.slot].job = job
        self._choose(decoding)
        if self._has_equal_splits:
            self._equalize_lengths()
        return {slot_id: guesses.sent for slot_id, guesses in self._guesses.items()}

    @property
    def siblings(self) -> dict[int, Mapping[int, TokenId]]:
        """The siblings to verify in this step, by slot id."""
        return {slot_id: g.siblings for slot_id, g in self._guesses.items() if g.siblings}

    def _max_draft_rows(self, slot: Slot, n_rows: int) -> int:
        """Return the most rows of a slot's draft.  n_rows: the slot's share of the pass.

        Rows that are evaluated again count too, so that no pass is wider than in the self-check.
        """
        n_before = len(slot.tokens) - slot.n_past
        n_most = min(n_rows - n_before, self._longest + 1 - n_before)
        return max(min(slot.n_ctx - len(slot.tokens), slot.n_left - 1, n_most), 0)

    def _plan(self, slot: Slot, n_slots: int, room: int) -> DraftJob | None:
        """Look up a draft; return the draft model's job, or None if it does not draft."""
        assert slot.sampler is not None
        request_id, drafter = slot.request_id, self.drafter
        if not slot.counters.n_steps:
            prompt_ns = slot.counters.first_token_ns - slot.counters.started_ns
            self.controller.observe_prompt(request_id, prompt_ns * 1e-9)
        found = LookupMatch()
        if self._lookup is not None and _wants_lookup(slot):
            found = self._lookup.find(slot.id, slot.tokens, room)
        self._guesses[slot.id] = _Guesses(found, n_room=room)
        if found.tokens or (drafter is None and room > 0):
            self._no_draft_reason[slot.id] = NO_GOOD_GUESS
        n_text_tokens = slot.n_text_tokens(len(slot.tokens))
        n_missed = drafter.n_missed(slot.id, n_text_tokens) if drafter is not None else 0
        n_max = self.controller.plan(
            request_id, n_missed, n_slots, found.matches, min(slot.n_left, NO_LIMIT)
        )
        n_max = min(n_max, room)
        if n_max <= 0:
            is_open = self._no_draft_reason[slot.id] == ANSWER_TOO_SHORT
            if is_open and n_missed and slot.counters.n_generated > _MIN_ANSWER_TOKENS:
                self._no_draft_reason[slot.id] = PROMPT_TOO_LONG
            return None
        self._no_draft_reason[slot.id] = NO_GOOD_GUESS
        return DraftJob(
            slot=slot.id,
            history=slot.text_tokens,
            sampler=slot.sampler,
            position=slot.counters.n_generated,
            n_max=n_max,
            extend=lambda margins: self.controller.extend(request_id, margins),
        )

    def _run(self, jobs: Sequence[DraftJob]) -> bool:
        """Let the draft model fill the jobs; return False if it failed."""
        assert self.drafter is not None
        began_ns, native_ns = self._clock_ns(), self.drafter.native_ns
        n_missed = sum(self.drafter.n_missed(job.slot, len(job.history)) for job in jobs)
        try:
            n_passes = self.drafter.draft(jobs)
        except (DecodeFailed, NonFiniteLogits) as error:
            log.warning("the drafter failed; this step runs without its draft: %s", error)
            for job in jobs:
                self.drafter.rewind(job.slot, 0)
                self._no_draft_reason[job.slot] = DRAFTER_FAILED
            return False
        self.draft_ns = self._clock_ns() - began_ns
        self.draft_native_ns = self.drafter.native_ns - native_ns
        self.controller.observe_draft(n_passes, n_missed, self.draft_ns * 1e-9)
        return True

    def _choose(self, decoding: Sequence[Slot]) -> None:
        several = [self._guesses[slot.id] for slot in decoding]
        drafts = [
            (slot.request_id, guesses.job.margins if guesses.job is not None else ())
            for slot, guesses in zip(decoding, several, strict=True)
        ]
        limits = [self._sibling_limits(*one) for one in zip(decoding, several, strict=True)]
        chosen = self.controller.choose(drafts, limits)
        for slot, guesses, (kind, n) in zip(decoding, several, chosen, strict=True):
            drafted = guesses.job.tokens if guesses.job is not None else ()
            guesses.sent_by = kind
            guesses.sent = (guesses.found.tokens if kind == DrafterKind.LOOKUP else drafted)[:n]
            if guesses.job is not None and self._n_leaves:
                siblings = self.controller.siblings(slot.request_id)
                guesses.siblings = {at: guesses.job.second_best[at] for at in siblings}

    def _sibling_limits(self, slot: Slot, guesses: _Guesses) -> SiblingLimits:
        n_reevaluated = len(slot.tokens) - 1 - slot.n_past
        if guesses.job is None or not self._n_leaves:
            return SiblingLimits(n_reevaluated=n_reevaluated)
        # An accepted sibling is evaluated again in the next step.  The context must not be full by
        # then, or a shift would drop other tokens than without drafts.
        n_fit = slot.n_ctx - len(slot.tokens) - 1
        second_best = guesses.job.second_best[: max(n_fit, 0)]
        at = [i for i, token in enumerate(second_best) if token != NO_TOKEN]
        return SiblingLimits(at, self._n_leaves, guesses.n_room, n_reevaluated)

    def _equalize_lengths(self) -> None:
        """Cut all drafts to the shortest, since each other length would take its own pass."""
        drafts = [guesses for guesses in self._guesses.values() if guesses.sent]
        n_least = min((len(guesses.sent) for guesses in drafts), default=0)
        for guesses in drafts:
            guesses.sent = guesses.sent[:n_least]

    # ------------------------------------------------------------------ after the pass

    def judge(self, slot: Slot, emitted: Sequence[TokenId], n_kept: int) -> None:
        """Judge all guesses for the slot, sent or not, by the tokens that the target emitted.

        n_kept: positions of the draft that were accepted, by their tokens or by a sibling.
        """
        guesses = self._guesses.get(slot.id)
        if guesses is None:
            # No drafter may draft in this step, so none has read ahead either.
            return
        self.rewind(slot, slot.n_past)
        # At most one of a token and its sibling is right, so positions are counted.
        n_sent = max(len(guesses.sent), n_kept)
        is_from_lookup = guesses.sent_by == DrafterKind.LOOKUP
        slot.counters.count_draft(n_sent, n_kept, is_from_lookup=is_from_lookup)
        guesses.n_emitted = n_kept + 1
        judged: list[Guess] = []
        if (job := guesses.job) is not None:
            judged.append((DrafterKind.MODEL, job.margins, *count_right(job.tokens, emitted)))
        if guesses.found.tokens:
            found = guesses.found
            judged.append((DrafterKind.LOOKUP, found.matches, *count_right(found.tokens, emitted)))
        # If the answer ended inside its draft, the rest of the draft was not judged.
        n_known = n_sent if n_kept < len(emitted) else n_kept
        self.controller.observe_step(slot.request_id, guesses.sent_by, n_known, n_kept, judged)
        if job is not None:
            self._judge_sibling(slot, job, emitted)

    def _judge_sibling(self, slot: Slot, job: DraftJob, emitted: Sequence[TokenId]) -> None:
        """Tell the controller whether the sibling of the first wrong token is right."""
        n_right, n_judged = count_right(job.tokens, emitted)
        if n_right < n_judged and job.second_best[n_right] != NO_TOKEN:
            is_right = job.second_best[n_right] == emitted[n_right]
            self.controller.observe_sibling(slot.request_id, is_right)

    def observe_pass(self, n_rows: int, n_slots: int, seconds: float) -> float:
        """Note the seconds of a pass without prompt; return the estimate for a plain one."""
        self.controller.observe_target(n_rows, seconds)
        return self.controller.costs.target_s(n_slots)

    def measure(self, slot: Slot, seconds: float, plain_s: float) -> None:
        """Note the slot's share of the step in seconds, and its estimated share of a plain one."""
        guesses = self._guesses.get(slot.id)
        if guesses is None:
            return
        # The time of a step with drafts of both drafters belongs to neither alone.
        by_model = guesses.job is not None and bool(guesses.job.tokens)
        by_lookup = guesses.sent_by == DrafterKind.LOOKUP
        if by_model != by_lookup:
            kind = DrafterKind.MODEL if by_model else DrafterKind.LOOKUP
            self.controller.measure(slot.request_id, kind, guesses.n_emitted, seconds, plain_s)

    def rewind(self, slot: Slot, n_past: int) -> None:
        """Tell the drafters that only the slot's first n_past tokens are unchanged."""
        if self.drafter is not None:
            # The draft model reads only text tokens.
            self.drafter.rewind(slot.id, slot.n_text_tokens(n_past))
        if self._lookup is not None:
            self._lookup.rewind(slot.id, n_past)

    def shift(self, slot: Slot, n_keep: int, n_discard: int) -> None:
        """Tell the drafters of a context shift: n_discard tokens after n_keep are dropped."""
        if self.drafter is not None:
            self.drafter.shift(slot.id, n_keep, n_discard)
        if self._lookup is not None:
            self._lookup.begin(slot.id)

    def stats(self, slot: Slot) -> SpeculationStats:
        """Return the statistics on speculation for an answer.

        The reason says why there is no draft model, or why nothing was drafted.  It is empty while
        either drafter of a pair drafts; the detail says if the model is parked meanwhile.
        """
        assert slot.request is not None
        state, reason = self.controller.state(slot.request_id)
        facts, detail = self._facts, ""
        name, source = facts.name, facts.pair_source
        if self.drafter is None:
            # Even if lookup drafts, users first ask why no model does.
            detail, reason = facts.detail, reason or facts.reason
            is_lookup_on = self._lookup is not None and _wants_lookup(slot)
            name, source = (LOOKUP_NAME, BUILTIN) if is_lookup_on else (None, None)
        elif reason:
            is_active = state is SpeculationState.ACTIVE
            lookup = f"; {LOOKUP_NAME} drafts instead" if is_active else ""
            # Without its name: the same engine may serve models that name it differently.
            detail = f"the draft model is parked: {self._describe_parked(reason)}{lookup}"
            reason = "" if is_active else reason
        if not _wants_drafts(slot):
            reason = NoPair.DISABLED_BY_USER
        elif not reason and not slot.counters.n_drafted:
            reason = self._no_draft_reason[slot.id]
            detail = _NO_DRAFT_REASONS[reason]
        return slot.counters.speculation(
            drafter=name,
            pair_source=source,
            state=state,
            reason=str(reason),
            detail=detail,
            speedup=slot.counters.speedup(),
            threshold=self._threshold() if _wants_drafts(slot) else None,
        )

    def _describe_parked(self, reason: str) -> str:
        """Return why the draft model is parked, as the second half of a sentence."""
        if reason == DOES_NOT_PAY and self.controller.costs.break_even(self._longest) == 1.0:
            return _NO_DRAFT_PAYS
        return _PARKED_REASONS.get(reason, reason)

    def _threshold(self) -> float | None:
        """Return the user's threshold, else the break-even acceptance; None: no drafter."""
        if self._lookup is None:
            return None
        if self._facts.threshold is not None:
            return self._facts.threshold
        return self.controller.costs.break_even(self._longest)


def _wants_drafts(slot: Slot) -> bool:
    assert slot.request is not None
    return bool(slot.request.drafters) and slot.request.n_draft_max != 0


def _wants_lookup(slot: Slot) -> bool:
    assert slot.request is not None
    return DrafterKind.LOOKUP in slot.request.drafters and _wants_drafts(slot)
