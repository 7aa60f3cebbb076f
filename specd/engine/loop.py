"""The engine's loop: every step advances all busy slots by one target pass.

A `step()` admits requests, drafts, decodes and verifies.  One thread runs it and owns everything
here.  Requests come in through `submit` and `cancel` between steps; answers leave as messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from specd.core import (
    Done,
    EngineRequest,
    Failed,
    FailureKind,
    StopReason,
    Token,
    TokenId,
    TokenLogprob,
)
from specd.engine import batching
from specd.engine.backend import Backend, DecodeFailed, Vocabulary
from specd.engine.batching import SharedPasses, StepResult
from specd.engine.detokenizer import visible_bytes
from specd.engine.exact_passes import ExactPasses
from specd.engine.grammar.state import NoAllowedToken
from specd.engine.media import MediaCache
from specd.engine.prefill import EncodingFailed, Prefill
from specd.engine.prompt_tokens import failed
from specd.engine.request_queue import RequestQueue
from specd.engine.sampler import NonFiniteLogits, Row, logprobs
from specd.engine.slot import Slot, SlotState, best_slot
from specd.engine.speculation import DrafterFacts, Speculation
from specd.engine.speculative.controller import Controller
from specd.engine.speculative.draft_model import DraftModel
from specd.engine.speculative.verifier import verify
from specd.errors import InvalidRequest, WorkerDied
from specd.ipc.messages import Finished, Started, ToDaemon, Tokens


class Loop:
    """The loop over the slots of one target, with its drafter, if any, and the controller."""

    def __init__(
        self,
        target: Backend,
        vocabulary: Vocabulary,
        controller: Controller,
        emit: Callable[[ToDaemon], None],
        *,
        flush: Callable[[], None] = lambda: None,
        n_ctx: int,
        n_slots: int,
        drafter: DraftModel | None = None,
        drafter_facts: DrafterFacts | None = None,
        media: MediaCache | None = None,
        exact: ExactPasses | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Set up idle slots.

        n_ctx: tokens that one slot may hold.  emit: takes messages and must not block.
        flush: sends the emitted messages; called before each pass, which would delay them.
        media: None if the model has no projector.  exact: None: one pass for all slots.
        """
        self.slots = [Slot(i) for i in range(n_slots)]
        self.target = target
        self.vocabulary = vocabulary
        self._emit = emit
        self._flush = flush
        self._passes = exact or SharedPasses(target.n_batch)
        self.prefill = Prefill(target, vocabulary, media, n_ctx)
        self.speculation = Speculation(
            controller,
            drafter,
            drafter_facts or DrafterFacts(),
            clock_ns,
            n_slots=n_slots,
            rewind_limit=target.rewind_limit if exact is None or exact.drafts else 0,
            has_equal_splits=target.has_equal_splits,
            n_leaves=target.n_leaves,
        )
        self._clock_ns = clock_ns
        self.queue = RequestQueue(vocabulary)
        self._n_admitted = 0

    # ------------------------------------------------------------------ between steps

    @property
    def is_busy(self) -> bool:
        return len(self.queue) > 0 or any(s.state is not SlotState.IDLE for s in self.slots)

    def submit(self, request_id: int, request: EngineRequest) -> None:
        """Queue a request for the next free slot; answer an invalid one at once."""
        try:
            prompt = self.prefill.prompt(request)
        except InvalidRequest as error:
            self._emit(Finished(request_id, failed(error)))
        else:
            self.queue.append(request_id, request, prompt)

    def cancel(self, request_id: int) -> None:
        """Drop a request without a further message."""
        self.queue.remove(request_id)
        for slot in self.slots:
            if slot.state is not SlotState.IDLE and slot.request_id == request_id:
                self._release(slot)

    def fail_all(self, kind: FailureKind, message: str) -> None:
        """End every request with the same failure."""
        for waiting in self.queue.remove_all():
            self._fail(waiting.request_id, kind, message)
        for slot in self.slots:
            if slot.state is not SlotState.IDLE:
                self._fail_slot(slot, kind, message)

    # ------------------------------------------------------------------ the step

    def step(self) -> bool:
        """Advance every busy slot by one target pass, and one of them by a piece of its image.

        Return whether there was any pass; if not, wait briefly for other threads.
        """
        self._admit()
        try:
            if self._run_passes() | (self.prefill.has_media and self._run_media_pass()):
                return True
            self.queue.wait_for_inputs(self.prefill.encoding(self.slots))
        except DecodeFailed as error:
            # The cache of every slot in the failed pass is undefined; idle slots are in no pass.
            for slot in self.slots:
                if slot.state is not SlotState.IDLE:
                    self._fail_slot(slot, FailureKind.ENGINE, str(error))
                    self.rewind(slot, 0)
        return False

    def _run_passes(self) -> bool:
        began_ns, decoding = self._clock_ns(), self._decoding()
        prefilling = [slot for slot in self.slots if slot.state is SlotState.PREFILL]
        drafts = self.speculation.draft(decoding, self.target.n_batch)
        draft_ns, has_run = self.speculation.draft_ns, False
        siblings = self.speculation.siblings
        for step_pass in self._passes.passes(decoding, drafts, prefilling, siblings):
            self._run_pass(step_pass, began_ns, draft_ns)
            began_ns, draft_ns, has_run = self._clock_ns(), 0, True
        return has_run

    def _run_pass(self, step_pass: batching.Pass, began_ns: int, draft_ns: int) -> None:
        """Run one pass and handle its results.  draft_ns: nanoseconds of drafting before it."""
        self._flush()
        step_pass.drafted = self.speculation.draft_ns > 0
        decode_ns = self._clock_ns()
        self.target.decode(step_pass.batch)
        native_ns = self._clock_ns() - decode_ns + self.speculation.draft_native_ns
        # Count before any answer ends, so that its usage includes its last pass.
        for group in step_pass.groups:
            group.slot.counters.native_ns += native_ns
        for group in step_pass.groups:
            self._verify(group)
        for chunk in step_pass.chunks:
            self._advance(chunk)
        self._record_costs(step_pass, self._clock_ns() - began_ns, draft_ns)

    def _run_media_pass(self) -> bool:
        """Read a piece of an image, if one is encoded; return whether there was one."""
        self._flush()
        try:
            chunk = self.prefill.prefill_media(self.slots)
        except EncodingFailed as error:
            self._fail_slot(error.slot, FailureKind.ENGINE, str(error))
            return True
        if chunk is not None:
            self._advance(chunk)
        return chunk is not None

    def _admit(self) -> None:
        """Assign waiting requests to idle slots, in the queue's order."""
        while self.queue and (waiting := self.queue.first_ready()) is not None:
            try:
                prompt, grammar = waiting.inputs()
            except (InvalidRequest, WorkerDied) as error:
                self.queue.remove(waiting.request_id)
                self._emit(Finished(waiting.request_id, failed(error)))
                continue
            chosen = best_slot(self.slots, prompt.tokens, self._reusable)
            if chosen is None:
                return
            self.queue.remove(waiting.request_id)
            slot, n_cached = chosen
            if n_cached < slot.n_past:
                n_cached = self.rewind(slot, n_cached)
            self._n_admitted += 1
            slot.last_used = self._n_admitted
            slot.begin(waiting.request_id, waiting.request, prompt, n_cached, grammar)
            slot.visible_bytes = visible_bytes(waiting.request.visible, self.vocabulary)
            slot.n_ctx = self.prefill.n_ctx(waiting.request)
            slot.counters.started_ns = self._clock_ns()
            self.speculation.open(slot)
            self.prefill.begin(slot)
            self._emit(Started(slot.request_id, slot.counters.n_prompt, n_cached))

    def _reusable(self, slot_id: int, n_past: int) -> int:
        return self.target.reusable(slot_id, self._passes.reusable(self.slots[slot_id], n_past))

    def _decoding(self) -> list[Slot]:
        """Return the decoding slots; shift those that are full, or end their answer.

        A shifted slot that has to read tokens again is not returned.
        """
        ready_slots = []
        for slot in self.slots:
            if slot.state is not SlotState.DECODE:
                continue
            if len(slot.tokens) > slot.n_ctx and not self._shift(slot):
                self._finish(slot, StopReason.LENGTH)
            elif slot.state is SlotState.DECODE:
                ready_slots.append(slot)
        return ready_slots

    def _shift(self, slot: Slot) -> bool:
        """Drop half of the slot's tokens after the first n_keep; return False if not allowed.

        If the cache cannot close the gap, all tokens after it are read again.
        """
        assert slot.request is not None
        if not slot.request.shift or slot.media:
            return False
        n_keep = min(self.prefill.n_keep(slot.request), slot.n_past - 2)
        n_discard = (slot.n_past - n_keep) // 2
        self.speculation.shift(slot, n_keep, n_discard)
        del slot.tokens[n_keep : n_keep + n_discard]
        slot.n_repeatable = min(slot.n_repeatable, n_keep)
        if self.target.can_shift:
            self.target.shift(slot.id, n_keep, n_discard)
            slot.n_past -= n_discard
        else:
            slot.n_past = self.target.rewind(slot.id, n_keep)
            slot.state = SlotState.PREFILL
        return True

    # ------------------------------------------------------------------ after the pass

    def _verify(self, group: batching.Group) -> None:
        """Commit the tokens that the target accepts or adds, and rewind the caches to them."""
        slot = group.slot
        assert slot.sampler is not None
        rows, sibling_rows = group.rows(self.target.row)
        at = slot.counters.n_generated
        verified = verify(group.draft, rows, slot.sampler, slot.tokens, at, sibling_rows)
        result = self._commit(slot, verified)
        n_kept, n_held = group.accepted_and_kept(result)
        slot.n_past += n_held
        slot.counters.n_steps += 1
        if n_held < group.n_main_rows and self.target.rewind(slot.id, slot.n_past) != slot.n_past:
            raise DecodeFailed(f"the cache of slot {slot.id} could not remove its draft")
        self.speculation.judge(slot, result.tokens, n_kept)
        self._end_answer(slot, result)

    def _advance(self, chunk: batching.Chunk) -> None:
        """Note an evaluated piece of a prompt; after the last one, sample the first token."""
        slot = chunk.slot
        assert slot.sampler is not None
        slot.n_past += chunk.n_tokens
        if chunk.last_row < 0:
            self._passes.record_piece(slot)
            return
        slot.state = SlotState.DECODE
        slot.counters.first_token_ns = slot.counters.first_token_ns or self._clock_ns()
        if slot.n_left <= 0:
            # The request wants no tokens, only the prompt read.
            self._finish(slot, StopReason.LENGTH)
            return
        row = self.target.row(chunk.last_row)
        verified = verify((), [row], slot.sampler, slot.tokens, slot.counters.n_generated)
        self._end_answer(slot, self._commit(slot, verified))

    def _commit(self, slot: Slot, tokens: Iterator[tuple[TokenId, Row]]) -> StepResult:
        """Append tokens until they run out or the answer ends; emit their text as one message."""
        result = StepResult()
        text = ""
        try:
            for token, row in tokens:
                text += self._append_token(slot, result, token, row)
                if result.stop_reason is not None:
                    break
        except (NoAllowedToken, NonFiniteLogits) as error:
            result.error_message = str(error)
            result.is_model_broken = isinstance(error, NonFiniteLogits)
        self._emit_text(slot, text, len(result.tokens), result.logprobs)
        return result

    def _append_token(self, slot: Slot, result: StepResult, token: TokenId, row: Row) -> str:
        """Append one token to the answer; return the text that can be shown now."""
        assert slot.request is not None
        result.tokens.append(token)
        slot.counters.n_generated += 1
        if self.vocabulary.is_eog(token):
            result.stop_reason = StopReason.STOP
            return ""
        slot.tokens.append(token)
        if slot.request.n_logprobs is not None:
            entry = logprobs(row, token, slot.request.n_logprobs, slot.visible_bytes)
            slot.pending_logprobs.append(entry)
        text = slot.stop.feed(slot.detokenizer.feed(slot.visible_bytes(token)))
        if slot.stop.stopped:
            result.stop_reason = StopReason.STOP
        elif slot.n_left <= 0:
            result.stop_reason = StopReason.LENGTH
        if text:
            # One entry per token, as without drafts, although the text leaves as one message.
            result.logprobs += slot.pending_logprobs
            slot.pending_logprobs = []
        return text

    def _emit_text(self, slot: Slot, text: str, n: int, entries: Sequence[TokenLogprob]) -> None:
        if text:
            token = Token(text=text, n_tokens=n, logprobs=tuple(entries))
            self._emit(Tokens(slot.request_id, token))

    def _record_costs(self, step_pass: batching.Pass, step_ns: int, draft_ns: int) -> None:
        """Tell the controller what a pass without prompt cost: step_ns less draft_ns."""
        n_slots = len(step_pass.groups)
        if step_pass.chunks or not n_slots:
            return
        seconds = (step_ns - draft_ns) * 1e-9
        plain_s = self.speculation.observe_pass(len(step_pass.batch), n_slots, seconds)
        if len(step_pass.batch) == n_slots and not step_pass.drafted:
            # This was a plain pass, so its measured time replaces the estimate.
            plain_s = step_ns * 1e-9
        step_s, plain_s = step_ns * 1e-9 / n_slots, plain_s / n_slots
        for group in step_pass.groups:
            group.slot.counters.step_s += step_s
            group.slot.counters.plain_s += plain_s
            self.speculation.measure(group.slot, step_s, plain_s)

    # ------------------------------------------------------------------ ends

    def _end_answer(self, slot: Slot, result: StepResult) -> None:
        """End the answer if the last pass ended it or failed."""
        if result.is_model_broken:
            self._fail_slot(slot, FailureKind.ENGINE, result.error_message)
            self.rewind(slot, 0)  # the cache may hold NaN or infinity as well
        elif result.error_message:
            self._fail_slot(slot, FailureKind.INVALID, result.error_message)
        elif result.stop_reason is not None:
            self._finish(slot, result.stop_reason)

    def _finish(self, slot: Slot, reason: StopReason) -> None:
        """Complete the answer: emit the text that was held back, then Done."""
        assert slot.request is not None
        text = slot.stop.feed(slot.detokenizer.flush()) + slot.stop.flush()
        self._emit_text(slot, text, 0, slot.pending_logprobs)
        done = Done(
            reason=reason,
            usage=slot.counters.usage(self._clock_ns()),
            speculation=self.speculation.stats(slot),
            context=tuple(slot.text_tokens) if slot.request.want_context else (),
        )
        self._emit(Finished(slot.request_id, done))
        self._release(slot)

    def _release(self, slot: Slot) -> None:
        self.speculation.close(slot)
        self.prefill.cancel_encoding(slot)
        slot.release()
        # A slot released while it reads again after a shift has a drafter that is ahead of it.
        self.speculation.rewind(slot, slot.n_past)

    def rewind(self, slot: Slot, n_past: int) -> int:
        """Cut the slot's caches to n_past tokens, or as far as they can be cut."""
        n_remaining = self.target.rewind(slot.id, n_past)
        self.speculation.rewind(slot, n_remaining)
        slot.n_past = n_remaining
        slot.n_repeatable = min(slot.n_repeatable, n_remaining)
        del slot.tokens[n_remaining:]
        return n_remaining

    def _fail_slot(self, slot: Slot, kind: FailureKind, message: str) -> None:
        self._fail(slot.request_id, kind, message)
        self._release(slot)

    def _fail(self, request_id: int, kind: FailureKind, message: str) -> None:
        self._emit(Finished(request_id, Failed(kind=kind, message=message)))
