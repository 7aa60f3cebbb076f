"""Speculation as the loop sees it: drafts before the pass, verdicts after it, and what to say.

Joins those who guess, a draft model where there is one and prompt lookup always, with the
controller that decides whom to believe and how far.
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
from specd.engine.speculative.drafter import Drafter, DraftJob, SiblingLimits
from specd.engine.speculative.drafter_stats import DOES_NOT_PAY, LOW_ACCEPTANCE
from specd.engine.speculative.prompt_lookup import LookupMatch, PromptLookup

log = logging.getLogger("specd.engine")

#: What answers call the drafter that needs no model.
LOOKUP_NAME = "prompt lookup"

_PARKED_REASONS = {
    DOES_NOT_PAY: "its drafts take longer than they save",
    LOW_ACCEPTANCE: "too few of its drafts are accepted",
    BUDGET_SPENT: "its drafts have cost this answer as much time as they may",
}

#: The same for a drafter that would not pay even if all its drafts were accepted.
_NO_DRAFT_PAYS = "its drafts take longer than they save, even if every drafted token is accepted"

#: Why nothing was drafted although no drafter is parked.
ANSWER_TOO_SHORT = "answer_too_short"
PROMPT_TOO_LONG = "prompt_too_long"
NO_GOOD_GUESS = "no_good_guess"
DRAFTER_FAILED = "drafter_failed"
_NO_DRAFT_REASONS = {
    PROMPT_TOO_LONG: "reading the prompt would take the drafter longer than its drafts should save",
    ANSWER_TOO_SHORT: "the answer was too short for a draft to be worth beginning",
    NO_GOOD_GUESS: "no guess was likely enough to be worth checking",
    DRAFTER_FAILED: "the drafter failed, the engine's log says how",
}


#: Tokens of an answer that is too short to be worth reading a prompt for.
_MIN_ANSWER_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """What an answer says of its draft model, or of why there is none.

    threshold: the least acceptance that the user set; None shows the break-even acceptance.
    """

    name: str | None = None
    pair_source: str | None = None
    reason: str = ""
    detail: str = ""
    threshold: float | None = None


@dataclass(slots=True)
class _Guesses:
    """What was guessed for one slot in one step, and whose tokens were sent.

    siblings: those that were sent, by the index of their drafted token.
    n_said: tokens that the step added to the answer.  n_room: rows that a draft may have.
    """

    found: LookupMatch
    job: DraftJob | None = None
    sent_by: str = ""
    sent: Sequence[TokenId] = ()
    siblings: Mapping[int, TokenId] = field(default_factory=dict)
    n_emitted: int = 0
    n_room: int = 0


class Speculation:
    """drafter None: prompt lookup alone, and the facts say why."""

    def __init__(
        self,
        controller: Controller,
        drafter: Drafter | None,
        facts: DrafterFacts,
        clock_ns: Callable[[], int],
        *,
        n_slots: int,
        rewind_limit: int | None = None,
        has_equal_splits: bool = False,
        n_leaves: int = 0,
    ) -> None:
        """rewind_limit, splits_ragged, n_leaves: the target's; a limit of 0: no drafts."""
        self._controller = controller
        self._drafter = drafter
        self._lookup = PromptLookup(n_slots) if rewind_limit != 0 else None
        longest = controller.longest
        self._longest = longest if rewind_limit is None else min(longest, rewind_limit)
        self._has_equal_splits = has_equal_splits
        self._n_leaves = n_leaves
        self._facts = facts
        self._clock_ns = clock_ns
        self._guesses: dict[int, _Guesses] = {}
        #: By slot: why nothing was drafted for its request, as long as nothing is.
        self._no_draft_reason: dict[int, str] = {}
        #: Nanoseconds that the draft model took in the current step, and those of its passes alone.
        self.draft_ns = self.draft_native_ns = 0

    def open(self, slot: Slot) -> None:
        """A request begins in the slot."""
        request = slot.request
        assert request is not None
        available = {DrafterKind.MODEL: self._drafter, DrafterKind.LOOKUP: self._lookup}
        self._controller.open(
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
        self._controller.close(slot.request_id)
        self._guesses.pop(slot.id, None)

    # ------------------------------------------------------------------ before the pass

    def draft(self, decoding: Sequence[Slot], n_batch: int) -> dict[int, Sequence[TokenId]]:
        """Drafted tokens by slot id, from whom and at the lengths that the controller chose.

        n_batch: rows a pass may have, shared by the slots.
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
        """Siblings beside the drafts of this step, by slot id."""
        return {slot_id: g.siblings for slot_id, g in self._guesses.items() if g.siblings}

    def _max_draft_rows(self, slot: Slot, n_rows: int) -> int:
        """Rows that a slot's draft may have.  n_rows: the slot's share of the pass.

        Rows that are evaluated again count too, so that no pass is wider than the self-check's.
        """
        n_before = len(slot.tokens) - slot.n_past
        n_most = min(n_rows - n_before, self._longest + 1 - n_before)
        return max(min(slot.n_ctx - len(slot.tokens), slot.n_left - 1, n_most), 0)

    def _plan(self, slot: Slot, n_slots: int, room: int) -> DraftJob | None:
        """Look up, and ask whether the model drafts; its job, where it does."""
        assert slot.sampler is not None
        request_id, drafter = slot.request_id, self._drafter
        if not slot.counters.n_steps:
            prompt_ns = slot.counters.first_token_ns - slot.counters.started_ns
            self._controller.observe_prompt(request_id, prompt_ns * 1e-9)
        found = LookupMatch()
        if self._lookup is not None and _wants_lookup(slot):
            found = self._lookup.find(slot.id, slot.tokens, room)
        self._guesses[slot.id] = _Guesses(found, n_room=room)
        if found.tokens or (drafter is None and room > 0):
            self._no_draft_reason[slot.id] = NO_GOOD_GUESS
        n_text_tokens = slot.n_text_tokens(len(slot.tokens))
        n_missed = drafter.n_missed(slot.id, n_text_tokens) if drafter is not None else 0
        n_max = self._controller.plan(
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
            extend=lambda margins: self._controller.extend(request_id, margins),
        )

    def _run(self, jobs: Sequence[DraftJob]) -> bool:
        """Let the draft model fill the jobs; False where it failed, which costs a plain step."""
        assert self._drafter is not None
        began_ns, native_ns = self._clock_ns(), self._drafter.native_ns
        n_missed = sum(self._drafter.n_missed(job.slot, len(job.history)) for job in jobs)
        try:
            n_passes = self._drafter.draft(jobs)
        except (DecodeFailed, NonFiniteLogits) as error:
            log.warning("the drafter failed, this step is plain: %s", error)
            for job in jobs:
                self._drafter.rewind(job.slot, 0)
                self._no_draft_reason[job.slot] = DRAFTER_FAILED
            return False
        self.draft_ns = self._clock_ns() - began_ns
        self.draft_native_ns = self._drafter.native_ns - native_ns
        self._controller.observe_draft(n_passes, n_missed, self.draft_ns * 1e-9)
        return True

    def _choose(self, decoding: Sequence[Slot]) -> None:
        """Let the controller weigh all drafts of the step against each other."""
        several = [self._guesses[slot.id] for slot in decoding]
        drafts = [
            (slot.request_id, guesses.job.margins if guesses.job is not None else ())
            for slot, guesses in zip(decoding, several, strict=True)
        ]
        limits = [self._sibling_limits(*one) for one in zip(decoding, several, strict=True)]
        chosen = self._controller.choose(drafts, limits)
        for slot, guesses, (kind, n) in zip(decoding, several, chosen, strict=True):
            drafted = guesses.job.tokens if guesses.job is not None else ()
            guesses.sent_by = kind
            guesses.sent = (guesses.found.tokens if kind == DrafterKind.LOOKUP else drafted)[:n]
            if guesses.job is not None and self._n_leaves:
                siblings = self._controller.siblings(slot.request_id)
                guesses.siblings = {at: guesses.job.second_best[at] for at in siblings}

    def _sibling_limits(self, slot: Slot, guesses: _Guesses) -> SiblingLimits:
        """Where siblings may stand beside the model's draft."""
        n_reevaluated = len(slot.tokens) - 1 - slot.n_past
        if guesses.job is None or not self._n_leaves:
            return SiblingLimits(n_reevaluated=n_reevaluated)
        # One that is accepted is read a step later.  The context must not be full before that, or a
        # shift would drop other tokens than without drafts.
        n_fit = slot.n_ctx - len(slot.tokens) - 1
        second_best = guesses.job.second_best[: max(n_fit, 0)]
        at = [i for i, token in enumerate(second_best) if token != NO_TOKEN]
        return SiblingLimits(at, self._n_leaves, guesses.n_room, n_reevaluated)

    def _equalize_lengths(self) -> None:
        """Cut all drafts to the shortest: each further length would be a pass of its own."""
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
            # No drafter may draft for this request, so none has read ahead either.
            return
        self.rewind(slot, slot.n_past)
        # At most one of a token and its sibling is right, so positions are counted.
        n_sent = max(len(guesses.sent), n_kept)
        is_from_lookup = guesses.sent_by == DrafterKind.LOOKUP
        slot.counters.count_draft(n_sent, n_kept, is_from_lookup=is_from_lookup)
        guesses.n_emitted = n_kept + 1
        judged: list[Guess] = []
        if (job := guesses.job) is not None:
            judged.append((DrafterKind.MODEL, job.margins, *_count_right(job.tokens, emitted)))
        if guesses.found.tokens:
            found = guesses.found
            judged.append((DrafterKind.LOOKUP, found.matches, *_count_right(found.tokens, emitted)))
        # An answer that ended inside its draft says nothing of the drafted rest.
        n_known = n_sent if n_kept < len(emitted) else n_kept
        self._controller.observe_step(slot.request_id, guesses.sent_by, n_known, n_kept, judged)
        if job is not None:
            self._judge_sibling(slot, job, emitted)

    def _judge_sibling(self, slot: Slot, job: DraftJob, emitted: Sequence[TokenId]) -> None:
        """Tell the controller whether the sibling of the first wrong token is right."""
        n_right, n_judged = _count_right(job.tokens, emitted)
        if n_right < n_judged and job.second_best[n_right] != NO_TOKEN:
            is_right = job.second_best[n_right] == emitted[n_right]
            self._controller.observe_sibling(slot.request_id, is_right)

    def observe_pass(self, n_rows: int, n_slots: int, seconds: float) -> float:
        """A pass without prompt took so long; seconds that a plain one would have taken."""
        self._controller.observe_target(n_rows, seconds)
        return self._controller.costs.target_s(n_slots)

    def measure(self, slot: Slot, seconds: float, plain_s: float) -> None:
        """The slot's share of this step took so long, and of a plain one would have taken plain_s.

        A step that prompt lookup drafted for after the model had drafted, too, says nothing.
        """
        guesses = self._guesses.get(slot.id)
        if guesses is None:
            return
        by_model = guesses.job is not None and bool(guesses.job.tokens)
        by_lookup = guesses.sent_by == DrafterKind.LOOKUP
        if by_model != by_lookup:
            kind = DrafterKind.MODEL if by_model else DrafterKind.LOOKUP
            self._controller.measure(slot.request_id, kind, guesses.n_emitted, seconds, plain_s)

    def rewind(self, slot: Slot, n_past: int) -> None:
        if self._drafter is not None:
            # It has read the words alone.
            self._drafter.rewind(slot.id, slot.n_text_tokens(n_past))
        if self._lookup is not None:
            self._lookup.rewind(slot.id, n_past)

    def shift(self, slot: Slot, n_keep: int, n_discard: int) -> None:
        if self._drafter is not None:
            self._drafter.shift(slot.id, n_keep, n_discard)
        if self._lookup is not None:
            self._lookup.begin(slot.id)

    def stats(self, slot: Slot) -> SpeculationStats:
        """What the answer says of speculation.

        The reason says why nothing is drafted at the end, or why nothing ever was.  Where only
        prompt lookup drafts, it says why there is no draft model.  With a draft model it is empty
        while either drafts; if prompt lookup drafts and the model rests, the detail says so.
        """
        assert slot.request is not None
        state, reason = self._controller.state(slot.request_id)
        facts, detail = self._facts, ""
        name, source = facts.name, facts.pair_source
        if self._drafter is None:
            # Lookup may be at work; why no model drafts is still what a user asks first.
            detail, reason = facts.detail, reason or facts.reason
            is_lookup_on = self._lookup is not None and _wants_lookup(slot)
            name, source = (LOOKUP_NAME, BUILTIN) if is_lookup_on else (None, None)
        elif reason:
            is_active = state is SpeculationState.ACTIVE
            lookup = f"; {LOOKUP_NAME} drafts instead" if is_active else ""
            # Without its name: the same engine may serve models that name it differently.
            detail = f"the draft model rests: {self._describe_parked(reason)}{lookup}"
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
        """Return the second half of a sentence."""
        if reason == DOES_NOT_PAY and self._controller.costs.break_even(self._longest) == 1.0:
            return _NO_DRAFT_PAYS
        return _PARKED_REASONS.get(reason, reason)

    def _threshold(self) -> float | None:
        """Return the user's threshold, else the break-even acceptance; None: no drafter."""
        if self._lookup is None:
            return None
        if self._facts.threshold is not None:
            return self._facts.threshold
        return self._controller.costs.break_even(self._longest)


def _wants_drafts(slot: Slot) -> bool:
    assert slot.request is not None
    return bool(slot.request.drafters) and slot.request.n_draft_max != 0


def _wants_lookup(slot: Slot) -> bool:
    assert slot.request is not None
    return DrafterKind.LOOKUP in slot.request.drafters and _wants_drafts(slot)


def _count_right(guess: Sequence[TokenId], emitted: Sequence[TokenId]) -> tuple[int, int]:
    """Tokens of the guess that were said, and those that what was said can judge."""
    n_right = 0
    for guessed, token in zip(guess, emitted, strict=False):
        if guessed != token:
            return n_right, n_right + 1
        n_right += 1
    return n_right, n_right
