"""The engine's one loop: every step advances all busy slots by one target pass.

`step()` is the architecture: admit, draft, decode, verify.  One thread runs it and owns everything
here; requests come in through `submit` and `cancel` between steps, answers leave as messages.
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
from specd.engine.batching import SharedPasses
from specd.engine.controls import spoken
from specd.engine.exact_passes import ExactPasses
from specd.engine.grammar.state import GrammarStuck
from specd.engine.media_cache import MediaCache
from specd.engine.queue import Queue
from specd.engine.reader import EncodingFailed, Reader
from specd.engine.said import Said
from specd.engine.sampler import NoNumbers, Row, logprobs
from specd.engine.slot import Slot, SlotState, best_slot
from specd.engine.speculation import DrafterFacts, Speculation
from specd.engine.speculative.controller import Controller
from specd.engine.speculative.drafter import Drafter
from specd.engine.speculative.verifier import verify
from specd.errors import ContextLengthExceeded, InvalidRequest, WorkerDied
from specd.ipc.messages import Begun, Finished, ToDaemon, Tokens


class Loop:
    """Slots of one target, its drafter where it has one, and the controller between them."""

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
        drafter: Drafter | None = None,
        drafter_facts: DrafterFacts | None = None,
        media: MediaCache | None = None,
        exact: ExactPasses | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """n_ctx: tokens that one slot may hold.  emit: takes messages and must not block.

        flush: sends what was emitted; called before each pass, which would delay it.
        media: None where the model has no projector.  exact: None is one pass for all.
        """
        self.slots = [Slot(i) for i in range(n_slots)]
        self._target = target
        self._vocabulary = vocabulary
        self._emit = emit
        self._flush = flush
        self._passes = exact or SharedPasses(target.n_batch)
        self.reader = Reader(target, vocabulary, media, n_ctx)
        self._speculation = Speculation(
            controller,
            drafter,
            drafter_facts or DrafterFacts(),
            clock_ns,
            n_slots=n_slots,
            rewind_limit=target.rewind_limit if exact is None or exact.drafts else 0,
            splits_ragged=target.splits_ragged,
            n_leaves=target.n_leaves,
        )
        self._clock_ns = clock_ns
        self._queue = Queue(vocabulary)
        self._n_admitted = 0

    # ------------------------------------------------------------------ between steps

    @property
    def busy(self) -> bool:
        return len(self._queue) > 0 or any(s.state is not SlotState.IDLE for s in self.slots)

    def submit(self, request_id: int, request: EngineRequest) -> None:
        """Queue a request for the next free slot; a bad one is answered at once."""
        try:
            prompt = self.reader.prompt(request)
        except InvalidRequest as error:
            self._refuse(request_id, error)
        else:
            self._queue.append(request_id, request, prompt)

    def cancel(self, request_id: int) -> None:
        """Free what the request holds; nothing more is said about it."""
        self._queue.remove(request_id)
        for slot in self.slots:
            if slot.state is not SlotState.IDLE and slot.request_id == request_id:
                self._release(slot)

    def abandon(self, kind: FailureKind, message: str) -> None:
        """End every request with the same failure."""
        for waiting in self._queue.empty():
            self._fail(waiting.request_id, kind, message)
        for slot in self.slots:
            if slot.state is not SlotState.IDLE:
                self._fail_slot(slot, kind, message)

    # ------------------------------------------------------------------ the step

    def step(self) -> bool:
        """Advance every busy slot by one target pass, and one of them by a piece of its image.

        Whether there was any: else all wait for what others are at work on.
        """
        self._admit()
        try:
            if self._pass() | (self.reader.shows_media and self._media_pass()):
                return True
            self._queue.pause(self.reader.encoding(self.slots))
        except DecodeFailed as error:
            self._lose(str(error))
        return False

    def _pass(self) -> bool:
        began_ns, decoding = self._clock_ns(), self._decoding()
        prefilling = [slot for slot in self.slots if slot.state is SlotState.PREFILL]
        drafts = self._speculation.draft(decoding, self._target.n_batch)
        draft_ns, ran = self._speculation.draft_ns, False
        for plan in self._passes.passes(decoding, drafts, prefilling, self._speculation.siblings):
            self._run(plan, began_ns, draft_ns)
            began_ns, draft_ns, ran = self._clock_ns(), 0, True
        return ran

    def _run(self, plan: batching.Pass, began_ns: int, draft_ns: int) -> None:
        """draft_ns: what drafting took of the time since began_ns."""
        self._flush()
        plan.drafted = self._speculation.draft_ns > 0
        decode_ns = self._clock_ns()
        self._target.decode(plan.batch)
        native_ns = self._clock_ns() - decode_ns + self._speculation.draft_native_ns
        # Noted before any answer ends, so that its last pass is in its usage.
        for group in plan.groups:
            group.slot.tally.native_ns += native_ns
        for group in plan.groups:
            self._verify(group)
        for chunk in plan.chunks:
            self._advance(chunk)
        self._account(plan, self._clock_ns() - began_ns, draft_ns)

    def _media_pass(self) -> bool:
        """Read on in an image."""
        self._flush()
        try:
            chunk = self.reader.read_on(self.slots)
        except EncodingFailed as error:
            self._fail_slot(error.slot, FailureKind.ENGINE, str(error))
            return True
        if chunk is None:
            return False
        self._advance(chunk)
        return True

    def _admit(self) -> None:
        """Give waiting requests to idle slots, in the queue's order."""
        while self._queue and (waiting := self._queue.first()) is not None:
            try:
                prompt, grammar = waiting.made()
            except (InvalidRequest, WorkerDied) as error:
                self._queue.remove(waiting.request_id)
                self._refuse(waiting.request_id, error)
                continue
            found = best_slot(self.slots, prompt.tokens, self._reusable)
            if found is None:
                return
            self._queue.remove(waiting.request_id)
            slot, n_cached = found
            if n_cached < slot.n_past:
                n_cached = self._rewind(slot, n_cached)
            self._n_admitted += 1
            slot.last_used = self._n_admitted
            slot.begin(waiting.request_id, waiting.request, prompt, n_cached, grammar)
            slot.spoken = spoken(waiting.request.visible, self._vocabulary)
            slot.n_ctx = self.reader.n_ctx(waiting.request)
            slot.tally.started_ns = self._clock_ns()
            self._speculation.open(slot)
            self.reader.begin(slot)
            self._emit(Begun(slot.request_id, slot.tally.n_prompt, n_cached))

    def _reusable(self, slot_id: int, n_past: int) -> int:
        return self._target.reusable(slot_id, self._passes.reusable(self.slots[slot_id], n_past))

    def _decoding(self) -> list[Slot]:
        """Decoding slots with room for one more row: shifted, or ended where they may not be.

        A shifted one may have to read what it kept again, and is no longer among them.
        """
        ready = []
        for slot in self.slots:
            if slot.state is not SlotState.DECODE:
                continue
            if len(slot.tokens) > slot.n_ctx and not self._shift(slot):
                self._finish(slot, StopReason.LENGTH)
            elif slot.state is SlotState.DECODE:
                ready.append(slot)
        return ready

    def _shift(self, slot: Slot) -> bool:
        """Drop half of what the slot may forget from its middle; False where it may not.

        Where the cache cannot close the gap, all behind it is read again.
        """
        assert slot.request is not None
        if not slot.request.shift or slot.media:
            return False
        n_keep = min(self.reader.n_keep(slot.request), slot.n_past - 2)
        n_discard = (slot.n_past - n_keep) // 2
        self._speculation.shift(slot, n_keep, n_discard)
        del slot.tokens[n_keep : n_keep + n_discard]
        slot.n_repeatable = min(slot.n_repeatable, n_keep)
        if self._target.can_shift:
            self._target.shift(slot.id, n_keep, n_discard)
            slot.n_past -= n_discard
        else:
            slot.n_past = self._target.rewind(slot.id, n_keep)
            slot.state = SlotState.PREFILL
        return True

    # ------------------------------------------------------------------ after the pass

    def _verify(self, group: batching.Group) -> None:
        """Commit what the target says of the slot's draft, and cut the caches back to it."""
        slot = group.slot
        assert slot.sampler is not None
        rows, beside = group.rows(self._target.row)
        at = slot.tally.n_generated
        said = self._commit(slot, verify(group.draft, rows, slot.sampler, slot.tokens, at, beside))
        n_kept, n_held = group.outcome(said)
        slot.n_past += n_held
        slot.tally.n_steps += 1
        if n_held < group.n_line and self._target.rewind(slot.id, slot.n_past) != slot.n_past:
            raise DecodeFailed(f"the cache of slot {slot.id} could not take back its draft")
        self._speculation.judge(slot, said.tokens, n_kept)
        self._end(slot, said)

    def _advance(self, chunk: batching.Chunk) -> None:
        """Note an evaluated piece of prompt; after its end, draw the next token."""
        slot = chunk.slot
        assert slot.sampler is not None
        slot.n_past += chunk.n_tokens
        if chunk.last_row < 0:
            self._passes.record_piece(slot)
            return
        slot.state = SlotState.DECODE
        slot.tally.first_token_ns = slot.tally.first_token_ns or self._clock_ns()
        if slot.n_left <= 0:
            # Nothing was asked for but to read the prompt.
            self._finish(slot, StopReason.LENGTH)
            return
        row = self._target.row(chunk.last_row)
        position = slot.tally.n_generated
        self._end(slot, self._commit(slot, verify((), [row], slot.sampler, slot.tokens, position)))

    def _commit(self, slot: Slot, tokens: Iterator[tuple[TokenId, Row]]) -> Said:
        """Append tokens to the answer until they run out or it ends; text leaves as one message."""
        said = Said()
        text = ""
        try:
            for token, row in tokens:
                text += self._keep(slot, said, token, row)
                if said.ended is not None:
                    break
        except (GrammarStuck, NoNumbers) as error:
            said.stuck = str(error)
            said.is_broken = isinstance(error, NoNumbers)
        self._say(slot, text, len(said.tokens), said.logprobs)
        return said

    def _keep(self, slot: Slot, said: Said, token: TokenId, row: Row) -> str:
        """Append one token to the answer; the text that it lets out."""
        assert slot.request is not None
        said.tokens.append(token)
        slot.tally.n_generated += 1
        if self._vocabulary.is_eog(token):
            said.ended = StopReason.STOP
            return ""
        slot.tokens.append(token)
        if slot.request.n_logprobs is not None:
            entry = logprobs(row, token, slot.request.n_logprobs, slot.spoken)
            slot.pending_logprobs.append(entry)
        text = slot.stop.feed(slot.detokenizer.feed(slot.spoken(token)))
        if slot.stop.stopped:
            said.ended = StopReason.STOP
        elif slot.n_left <= 0:
            said.ended = StopReason.LENGTH
        if text:
            # Token by token, as without drafts, though the text of all leaves as one message.
            said.logprobs += slot.pending_logprobs
            slot.pending_logprobs = []
        return text

    def _say(self, slot: Slot, text: str, n_tokens: int, entries: Sequence[TokenLogprob]) -> None:
        if text:
            token = Token(text=text, n_tokens=n_tokens, logprobs=tuple(entries))
            self._emit(Tokens(slot.request_id, token))

    def _account(self, plan: batching.Pass, step_ns: int, draft_ns: int) -> None:
        """Tell the controller what the pass cost; one with prompt in it says nothing.

        All that was not drafting is the price of the pass: ours is part of it.
        """
        n_slots = len(plan.groups)
        if plan.chunks or not n_slots:
            return
        seconds = (step_ns - draft_ns) * 1e-9
        plain_s = self._speculation.observe_pass(len(plan.batch), n_slots, seconds)
        if len(plan.batch) == n_slots and not plan.drafted:
            # Nobody drafted: this was the plain pass itself, no estimate needed.
            plain_s = step_ns * 1e-9
        step_s, plain_s = step_ns * 1e-9 / n_slots, plain_s / n_slots
        for group in plan.groups:
            group.slot.tally.step_s += step_s
            group.slot.tally.plain_s += plain_s
            self._speculation.measure(group.slot, step_s, plain_s)

    # ------------------------------------------------------------------ ends

    def _end(self, slot: Slot, said: Said) -> None:
        """End the answer where the last pass ended it."""
        if said.is_broken:
            self._fail_slot(slot, FailureKind.ENGINE, said.stuck)
            self._rewind(slot, 0)  # what it remembers may be no numbers either
        elif said.stuck:
            self._fail_slot(slot, FailureKind.INVALID, said.stuck)
        elif said.ended is not None:
            self._finish(slot, said.ended)

    def _finish(self, slot: Slot, reason: StopReason) -> None:
        """The answer is complete: say what is still held back, then Done."""
        assert slot.request is not None
        text = slot.stop.feed(slot.detokenizer.flush()) + slot.stop.flush()
        self._say(slot, text, 0, slot.pending_logprobs)
        done = Done(
            reason=reason,
            usage=slot.tally.usage(self._clock_ns()),
            speculation=self._speculation.stats(slot),
            context=tuple(slot.words) if slot.request.want_context else (),
        )
        self._emit(Finished(slot.request_id, done))
        self._release(slot)

    def _release(self, slot: Slot) -> None:
        self._speculation.close(slot)
        self.reader.leave(slot)
        slot.release()
        # One that is left while it reads again after a shift has a drafter that is ahead of it.
        self._speculation.rewind(slot, slot.n_past)

    def _lose(self, message: str) -> None:
        """A pass failed and left its slots' caches undefined: empty them, end their requests."""
        for slot in self.slots:
            if slot.state is SlotState.IDLE:
                continue
            self._fail_slot(slot, FailureKind.ENGINE, message)
            self._rewind(slot, 0)

    def _rewind(self, slot: Slot, n_past: int) -> int:
        """Cut the slot's caches to n_past tokens, or as far as they can be cut."""
        kept = self._target.rewind(slot.id, n_past)
        self._speculation.rewind(slot, kept)
        slot.n_past = kept
        slot.n_repeatable = min(slot.n_repeatable, kept)
        del slot.tokens[kept:]
        return kept

    def _refuse(self, request_id: int, error: InvalidRequest | WorkerDied) -> None:
        if isinstance(error, WorkerDied):
            return self._fail(request_id, FailureKind.ENGINE, str(error))
        if not isinstance(error, ContextLengthExceeded):
            return self._fail(request_id, FailureKind.INVALID, str(error))
        sizes = error.n_prompt, error.n_ctx
        return self._fail(request_id, FailureKind.CONTEXT_LENGTH, str(error), *sizes)

    def _fail_slot(self, slot: Slot, kind: FailureKind, message: str) -> None:
        self._fail(slot.request_id, kind, message)
        self._release(slot)

    def _fail(
        self, request_id: int, kind: FailureKind, message: str, n_prompt: int = 0, n_ctx: int = 0
    ) -> None:
        failed = Failed(kind=kind, message=message, n_prompt=n_prompt, n_ctx=n_ctx)
        self._emit(Finished(request_id, failed))
