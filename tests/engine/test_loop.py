"""The loop over a strict fake: text never depends on speculation, every request ends once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import (
    Done,
    EngineRequest,
    Failed,
    FailureKind,
    Image,
    NoPair,
    SamplingParams,
    SpeculationMode,
    SpeculationState,
    StopReason,
)
from specd.engine.backend import Batch
from specd.engine.loop import Loop
from specd.engine.media import MediaCache
from specd.engine.sampler import Row
from specd.engine.slot import SlotState
from specd.engine.speculation import DrafterFacts
from specd.engine.speculative.controller import Controller, Guess
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_model import DraftModel
from specd.ipc.messages import Finished, ToDaemon, Tokens
from tests.fakes.backend import FakeBackend, FakeVocabulary
from tests.fakes.projector import FakeProjector

VOCABULARY = FakeVocabulary()
#: A machine on which drafting pays: wide passes cost hardly more than narrow ones.
CHEAP = {1: 1.0, 17: 1.2}


class Clock:
    """Advances a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


@dataclass
class Judged:
    n_judged: int
    n_accepted: int


class Listening(Controller):
    """A controller that records the verdicts it gets."""

    def __init__(
        self, costs: CostModel, threshold: float, judged: list[Judged], max_draft: int | None
    ) -> None:
        super().__init__(costs, threshold, max_draft=max_draft)
        self._judged = judged

    def observe_step(
        self, request_id: int, sent_by: str, n_sent: int, n_accepted: int, guesses: Sequence[Guess]
    ) -> None:
        self._judged.append(Judged(n_sent, n_accepted))
        super().observe_step(request_id, sent_by, n_sent, n_accepted, guesses)


class Engine:
    """A loop, its fakes, and the messages that it sent."""

    def __init__(
        self,
        *,
        n_slots: int = 1,
        n_ctx: int = 256,
        n_batch: int = 32,
        agreement: float | None = 0.9,
        facts: DrafterFacts | None = None,
        rewind_limit: int | None = None,
        can_shift: bool = True,
        eog_bias: float = -4.0,
        projector: FakeProjector | None = None,
        max_draft: int | None = None,
    ) -> None:
        self.said: list[ToDaemon] = []
        self.target = FakeBackend(
            n_slots,
            n_batch=n_batch,
            rewind_limit=rewind_limit,
            can_shift=can_shift,
            eog_bias=eog_bias,
        )
        self.draft_backend = FakeBackend(
            n_slots, n_batch=n_batch, n_vocab=70, agreement=agreement or 1.0, salt=3
        )
        drafter = DraftModel(self.draft_backend, VOCABULARY, n_slots) if agreement else None
        self.judged: list[Judged] = []
        costs = CostModel(CHEAP, 0.01, 1e-6)
        self.controller = Listening(costs, 0.4, self.judged, max_draft)
        self.loop = Loop(
            self.target,
            VOCABULARY,
            self.controller,
            self.said.append,
            n_ctx=n_ctx,
            n_slots=n_slots,
            drafter=drafter,
            drafter_facts=facts or DrafterFacts(name="tiny", pair_source="manifest"),
            media=MediaCache(projector) if projector is not None else None,
            clock_ns=Clock(),
        )

    def submit(self, request_id: int, **fields: Any) -> None:
        self.loop.submit(request_id, make_request(**fields))

    def run(self) -> None:
        for _ in range(5000):
            if not self.loop.is_busy:
                return
            self.loop.step()
        raise AssertionError("the loop does not come to an end")

    def text(self, request_id: int) -> str:
        return "".join(
            m.token.text for m in self.said if isinstance(m, Tokens) and m.request_id == request_id
        )

    def end(self, request_id: int) -> Done | Failed:
        ends = [m for m in self.said if isinstance(m, Finished) and m.request_id == request_id]
        assert len(ends) == 1, "exactly one terminal event"
        assert self.said.index(ends[0]) == max(
            i for i, m in enumerate(self.said) if getattr(m, "request_id", None) == request_id
        )
        return ends[0].event

    def done(self, request_id: int) -> Done:
        event = self.end(request_id)
        assert isinstance(event, Done)
        return event


def make_request(
    prompt: Iterable[str | int | Image] = ("HELLO",),
    *,
    seed: int = 0,
    temperature: float = 0.8,
    repeat_penalty: float = 1.0,
    **fields: Any,
) -> EngineRequest:
    fields.setdefault("n_predict", 40)
    sampling = SamplingParams(
        seed=seed, temperature=temperature, repeat_penalty=repeat_penalty, top_k=20
    )
    return EngineRequest(prompt=tuple(prompt), **{"sampling": sampling, **fields})


def answer(engine: Engine, **fields: Any) -> tuple[str, Done]:
    engine.submit(1, **fields)
    engine.run()
    return engine.text(1), engine.done(1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.5]),
    repeat_penalty=st.sampled_from([1.0, 1.2]),
    agreement=st.sampled_from([0.0001, 0.5, 0.9, 1.0]),
    n_draft=st.integers(1, 16),
    mode=st.sampled_from(SpeculationMode),
    n_batch=st.sampled_from([18, 32, 100]),
    n_ctx=st.sampled_from([24, 64, 256]),
    stop=st.sampled_from([(), ("A",), ("BC", "Zx")]),
)
def test_text_does_not_depend_on_speculation(
    *,
    seed: int,
    temperature: float,
    repeat_penalty: float,
    agreement: float,
    n_draft: int,
    mode: SpeculationMode,
    n_batch: int,
    n_ctx: int,
    stop: tuple[str, ...],
) -> None:
    request = {
        "seed": seed,
        "temperature": temperature,
        "repeat_penalty": repeat_penalty,
        "stop": stop,
        "want_context": True,
        "n_predict": 60,
    }
    plain = Engine(agreement=None, n_ctx=n_ctx, n_batch=n_batch)
    text, done = answer(plain, **request)
    drafting = Engine(agreement=agreement, n_ctx=n_ctx, n_batch=n_batch)
    drafted_text, drafted = answer(drafting, n_draft_max=n_draft, mode=mode, **request)
    assert drafted_text == text
    assert drafted.reason == done.reason
    assert drafted.context == done.context
    assert drafted.usage.n_generated == done.usage.n_generated


@settings(max_examples=40, deadline=None)
@given(
    max_draft=st.integers(0, 20),
    asked=st.sampled_from([None, 1, 4, 30]),
    limit=st.sampled_from([None, 2, 16]),
    mode=st.sampled_from(SpeculationMode),
    drafts=st.booleans(),
)
def test_draft_length_is_limited_by_pair_request_and_cache(
    *, max_draft: int, asked: int | None, limit: int | None, mode: SpeculationMode, drafts: bool
) -> None:
    engine = Engine(
        agreement=1.0 if drafts else None,
        n_batch=100,
        rewind_limit=limit,
        max_draft=max_draft,
        eog_bias=-50,
    )
    prompt = ("ABCDEFGH" * 6,)
    request = {"prompt": prompt, "temperature": 0, "n_predict": 60, "n_draft_max": asked}
    text, done = answer(engine, mode=mode, **request)
    bounds = [max_draft, 16, *(n for n in (asked, limit) if n is not None)]
    lengths = done.speculation.drafted_per_depth
    assert len(lengths) <= min(bounds)
    if mode is SpeculationMode.FIXED and drafts:
        assert len(lengths) == min(bounds), "a fixed length is the bound itself"
    assert text == answer(Engine(agreement=None, eog_bias=-50), **request)[0]


@settings(max_examples=25, deadline=None)
@given(
    n_slots=st.integers(1, 4),
    requests=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 60), st.sampled_from([None, 0, 3])),
        min_size=1,
        max_size=8,
    ),
    cancel_at=st.dictionaries(st.integers(0, 7), st.integers(0, 20), max_size=3),
)
def test_many_requests_over_few_slots_answer_as_each_alone(
    n_slots: int,
    requests: list[tuple[int, int, int | None]],
    cancel_at: dict[int, int],
) -> None:
    engine = Engine(n_slots=n_slots, n_batch=80)
    for at, (seed, n_prompt, n_draft) in enumerate(requests):
        engine.submit(at, prompt=("AB" * n_prompt,), seed=seed, n_draft_max=n_draft)
    for step in range(3000):
        for at, when in cancel_at.items():
            if when == step:
                engine.loop.cancel(at)
        if not engine.loop.is_busy:
            break
        engine.loop.step()
    for at, (seed, n_prompt, _) in enumerate(requests):
        ends = [m for m in engine.said if isinstance(m, Finished) and m.request_id == at]
        if at in cancel_at and not ends:
            continue
        alone = Engine(agreement=None)
        text, _ = answer(alone, prompt=("AB" * n_prompt,), seed=seed)
        assert engine.text(at) == text
        engine.end(at)
    assert all(slot.state is SlotState.IDLE for slot in engine.loop.slots)
    for slot in engine.loop.slots:
        assert engine.target.cells[slot.id] == slot.tokens


def test_an_accepted_draft_token_is_never_evaluated_twice_by_the_drafter() -> None:
    engine = Engine(agreement=1.0, eog_bias=-50)
    _, done = answer(engine, n_draft_max=4, mode=SpeculationMode.FIXED, n_predict=41)
    stats = done.speculation
    assert stats.draft_n == stats.draft_n_accepted
    # One row per prompt token and per generated token that was followed by another, none more.
    assert engine.draft_backend.n_rows == done.usage.n_prompt + done.usage.n_generated - 2


def test_a_second_turn_evaluates_only_new_tokens() -> None:
    engine = Engine(eog_bias=-50)
    engine.submit(1, prompt=("HELLO",), want_context=True, n_predict=10)
    engine.run()
    context = engine.done(1).context
    engine.submit(2, prompt=(*context, "MORE"), n_predict=5)
    engine.run()
    usage = engine.done(2).usage
    assert usage.n_cached == len(context) - 1
    assert usage.n_prompt == len(context) + len("MORE")


def test_a_chunked_prompt_gives_the_same_answer() -> None:
    prompt = ("QWERTY" * 30,)
    whole = answer(Engine(n_batch=256), prompt=prompt)[0]
    assert answer(Engine(n_batch=20), prompt=prompt)[0] == whole


def test_an_invalid_token_id_is_refused_and_the_next_request_served() -> None:
    engine = Engine()
    engine.submit(1, prompt=("A", 64))
    engine.submit(2)
    engine.run()
    failed = engine.end(1)
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.INVALID
    engine.done(2)


def test_a_long_prompt_without_truncate_is_refused_with_both_lengths() -> None:
    engine = Engine(n_ctx=32)
    engine.submit(1, prompt=("A" * 40,), truncate=False)
    failed = engine.end(1)
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.n_prompt, failed.n_ctx) == (FailureKind.CONTEXT_LENGTH, 41, 32)


@pytest.mark.contract("shift")
def test_a_full_context_ends_the_answer_without_shift() -> None:
    engine = Engine(n_ctx=32, eog_bias=-50)
    _, done = answer(engine, shift=False, n_predict=-1)
    assert done.reason is StopReason.LENGTH
    assert done.usage.n_prompt + done.usage.n_generated == 33


@pytest.mark.contract("shift")
def test_a_full_context_shifts_and_continues() -> None:
    engine = Engine(n_ctx=32, eog_bias=-50)
    _, done = answer(engine, n_predict=100)
    assert done.usage.n_generated == 100
    assert engine.target.cells[0][:5] == VOCABULARY.tokenize("HELL", add_bos=True)


def test_a_failed_pass_fails_its_requests_and_the_engine_continues() -> None:
    engine = Engine(n_slots=2)
    engine.submit(1)
    engine.submit(2)
    engine.loop.step()
    engine.target.fail_next = True
    engine.loop.step()
    for request_id in (1, 2):
        failed = engine.end(request_id)
        assert isinstance(failed, Failed)
        assert failed.kind is FailureKind.ENGINE
    engine.submit(3)
    engine.run()
    assert engine.text(3) == answer(Engine(agreement=None))[0]


def test_a_failed_pass_empties_the_caches() -> None:
    engine = Engine()
    engine.submit(1, prompt=("HELLO",))
    engine.loop.step()
    engine.target.fail_next = True
    engine.loop.step()
    assert engine.target.cells == [[]]
    engine.submit(2, prompt=("HELLO",))
    engine.run()
    assert engine.done(2).usage.n_cached == 0


def test_an_answer_that_ends_inside_its_draft_counts_no_rejection() -> None:
    """The tokens after the end were never judged: they must not count against the drafter."""
    engine = Engine(agreement=1.0, eog_bias=-50)
    whole = answer(Engine(agreement=None, eog_bias=-50))[0]
    stop = whole[4:6]
    assert whole.index(stop) == 4, "the answer ends inside its first draft"
    _, done = answer(engine, n_draft_max=8, mode=SpeculationMode.FIXED, stop=(stop,))
    assert done.reason is StopReason.STOP
    assert done.speculation.draft_n == 8
    assert engine.judged == [Judged(5, 5)]


def test_a_failed_drafter_costs_only_one_plain_step() -> None:
    engine = Engine()
    engine.submit(1)
    engine.loop.step()
    engine.draft_backend.fail_next = True
    engine.run()
    assert engine.text(1) == answer(Engine(agreement=None))[0]


def test_a_drafter_that_failed_while_reading_drafts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tokens read before the failure are in its cache, and must be removed."""
    engine = Engine(n_batch=20, eog_bias=-50)
    decode = engine.draft_backend.decode

    def fails_second(batch: Batch) -> None:
        engine.draft_backend.fail_next = engine.draft_backend.n_passes == 1
        decode(batch)

    engine.submit(1, prompt=("QWERTY" * 10,))
    with monkeypatch.context() as patch:
        patch.setattr(engine.draft_backend, "decode", fails_second)
        while engine.draft_backend.n_passes < 1:
            engine.loop.step()
    engine.run()
    plain = Engine(agreement=None, eog_bias=-50)
    assert engine.text(1) == answer(plain, prompt=("QWERTY" * 10,))[0]
    assert engine.done(1).speculation.draft_n > 0


def test_a_cancelled_request_frees_its_slot_without_a_message() -> None:
    engine = Engine()
    engine.submit(1)
    engine.submit(2)
    engine.loop.step()
    engine.loop.cancel(1)
    engine.run()
    assert not any(isinstance(m, Finished) and m.request_id == 1 for m in engine.said)
    engine.done(2)


def test_cancelling_during_rereading_rewinds_the_drafter() -> None:
    engine = Engine(n_ctx=128, n_batch=18, can_shift=False, agreement=1.0, eog_bias=-50)
    engine.draft_backend.can_shift = True
    slot = engine.loop.slots[0]
    engine.submit(1, prompt=("QWERTYUIOP" * 9,), n_predict=200)
    while slot.state is not SlotState.PREFILL or not slot.counters.n_generated:
        engine.loop.step()
    engine.loop.cancel(1)
    assert engine.draft_backend.cells[0] == slot.tokens[: len(engine.draft_backend.cells[0])]
    engine.submit(2, prompt=(*slot.tokens, "MORE"))
    engine.run()
    assert engine.done(2).speculation.draft_n_accepted > 0


def test_fail_all_ends_every_request() -> None:
    engine = Engine()
    engine.submit(1)
    engine.submit(2)
    engine.loop.step()
    engine.loop.fail_all(FailureKind.SHUTDOWN, "bye")
    assert {type(engine.end(i)) for i in (1, 2)} == {Failed}
    assert not engine.loop.is_busy


def test_a_model_that_cannot_rewind_is_decoded_plainly() -> None:
    engine = Engine(agreement=None, rewind_limit=0)
    engine.submit(1, prompt=("HELLO",))
    engine.run()
    engine.submit(2, prompt=("HELP",))
    engine.run()
    assert engine.done(2).usage.n_cached == 0


def test_an_answer_without_a_drafter_says_why() -> None:
    facts = DrafterFacts(reason=NoPair.VOCABULARY_DIFFERS, detail="token 7 differs")
    stats = answer(Engine(agreement=None, facts=facts))[1].speculation
    assert (stats.drafter, stats.pair_source) == ("prompt lookup", "builtin")
    assert (stats.state, stats.reason) == (SpeculationState.ACTIVE, "vocabulary_differs")
    assert stats.detail == "token 7 differs"


def test_an_answer_without_allowed_drafters_says_so() -> None:
    stats = answer(Engine(rewind_limit=0, agreement=None, facts=DrafterFacts(reason="x")))[1]
    assert stats.speculation.drafter is None
    assert (stats.speculation.state, stats.speculation.reason) == (SpeculationState.OFF, "x")


def test_an_answer_with_speculation_switched_off_says_so() -> None:
    stats = answer(Engine(), n_draft_max=0)[1].speculation
    assert (stats.state, stats.reason) == (SpeculationState.OFF, "disabled_by_user")
    assert stats.draft_n == 0


def test_logprobs_cover_every_token_with_and_without_drafts() -> None:
    engine = Engine(eog_bias=-50)
    engine.submit(1, n_logprobs=2, n_predict=30)
    engine.run()
    entries = [e for m in engine.said if isinstance(m, Tokens) for e in m.token.logprobs]
    assert engine.done(1).speculation.draft_n_accepted > 0
    assert len(entries) == 30
    assert all(entry.logprob < 0 and len(entry.top) == 2 for entry in entries)


def test_logprobs_end_with_the_text_with_and_without_drafts() -> None:
    whole = answer(Engine(agreement=None, eog_bias=-50))[0]
    request = {"n_logprobs": 0, "stop": (whole[4:6],)}
    entries = []
    for n_draft in (0, 8):
        engine = Engine(agreement=1.0, eog_bias=-50)
        text, _ = answer(engine, n_draft_max=n_draft, mode=SpeculationMode.FIXED, **request)
        assert text == whole[:4]
        entries.append([e for m in engine.said if isinstance(m, Tokens) for e in m.token.logprobs])
    plain, drafted = entries
    assert plain == drafted
    assert len(plain) == 4


@pytest.mark.parametrize("n_predict", [0, 1, 2, 7])
def test_the_token_limit_is_exact_with_any_draft(n_predict: int) -> None:
    engine = Engine(agreement=1.0, eog_bias=-50)
    _, done = answer(engine, n_predict=n_predict, n_draft_max=16, mode=SpeculationMode.FIXED)
    assert done.usage.n_generated == n_predict
    assert done.reason is StopReason.LENGTH


class Overflowing(FakeBackend):
    """A backend whose rows are NaN for a slot that holds a certain token."""

    POISON = 13

    def _logits(self, tokens: list[int]) -> Row:
        row = super()._logits(tokens)
        return np.full_like(row, np.nan) if self.POISON in tokens else row


def test_non_finite_logits_fail_one_request_only() -> None:
    backend = Overflowing(n_slots=2)
    said: list[ToDaemon] = []
    controller = Controller(CostModel(CHEAP), 0.4)
    loop = Loop(backend, VOCABULARY, controller, said.append, n_ctx=64, n_slots=2)
    requests = {1: (5, Overflowing.POISON, 6), 2: (5, 7, 6)}
    for request_id, prompt in requests.items():
        sampling = SamplingParams(temperature=0)
        loop.submit(request_id, EngineRequest(prompt=prompt, sampling=sampling, n_predict=5))
    while loop.is_busy:
        loop.step()
    ends = {m.request_id: m.event for m in said if isinstance(m, Finished)}
    assert isinstance(ends[1], Failed)
    assert (ends[1].kind, "no numbers" in ends[1].message) == (FailureKind.ENGINE, True)
    assert isinstance(ends[2], Done)
    assert min(map(len, backend.cells)) == 0, "a slot with such rows must not be reused"
