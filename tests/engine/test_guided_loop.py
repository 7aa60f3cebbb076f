"""Grammars in the loop, over the strict fake: every answer follows its own."""

from __future__ import annotations

import re
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import Failed, FailureKind, Grammar, GrammarKind, SpeculationMode, StopReason
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.state import GrammarState
from specd.engine.slot import SlotState
from specd.errors import WorkerDied
from specd.ipc.messages import Finished
from tests.engine.test_loop import VOCABULARY, Engine, answer

#: The fake's vocabulary is one sign per token, from A on.
WORDS = Grammar(kind=GrammarKind.GBNF, text='root ::= ("AB" [C-P]{1,9} "é"? "Z"){2,5} "END"')
WORDS_RE = r"(AB[C-P]{1,9}é?Z){2,5}END"
SHORT = Grammar(kind=GrammarKind.GBNF, text='root ::= "YES" | "NO"')
#: What the fake has no token for.
FOREIGN = Grammar(kind=GrammarKind.GBNF, text='root ::= "AB" [0-9]+')
WRONG = Grammar(kind=GrammarKind.GBNF, text="root = A")


#: Shared, so that each grammar is compiled once.
COMPILER = GrammarCompiler(VOCABULARY)


class Guided(Engine):
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.loop.queue.compiler = COMPILER


class Held(GrammarCompiler):
    """A compiler whose compilations finish when the test releases them."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.asked: list[Future[GrammarState]] = []

    def submit(self, grammar: Grammar) -> Future[GrammarState]:
        self.asked.append(Future())
        return self.asked[-1]


def end_of(engine: Engine, request_id: int) -> Failed:
    failed = engine.end(request_id)
    assert isinstance(failed, Failed)
    return failed


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    repeat_penalty=st.sampled_from([1.0, 1.2]),
    agreement=st.sampled_from([0.0001, 0.5, 0.9, 1.0]),
    n_draft=st.integers(1, 16),
    mode=st.sampled_from(SpeculationMode),
    n_predict=st.sampled_from([7, 100]),
    stop=st.sampled_from([(), ("ZA",), ("GH", "Zx", "DE")]),
)
def test_text_under_a_grammar_does_not_depend_on_speculation(
    *, agreement: float, n_draft: int, mode: SpeculationMode, **request: Any
) -> None:
    request |= {"grammar": WORDS, "want_context": True}
    text, done = answer(Guided(agreement=None), n_draft_max=0, **request)
    drafted = Guided(agreement=agreement)
    drafted_text, drafted_done = answer(drafted, n_draft_max=n_draft, mode=mode, **request)
    assert drafted_text == text
    assert drafted_done.reason == done.reason
    assert drafted_done.context == done.context
    assert drafted_done.usage.n_generated == done.usage.n_generated
    if done.reason is StopReason.LENGTH:
        assert done.usage.n_generated == request["n_predict"]
    elif not request["stop"]:
        assert re.fullmatch(WORDS_RE, text)


def test_drafts_under_the_grammar_are_accepted() -> None:
    """Without the grammar, drafts follow the model but do not fit the answer."""
    engine = Guided(agreement=1.0)
    _, done = answer(
        engine, grammar=WORDS, n_draft_max=4, mode=SpeculationMode.FIXED, n_predict=100
    )
    stats = done.speculation
    assert stats.draft_n > 10
    # Only tokens drafted after the answer's end were rejected.
    assert stats.draft_n - stats.draft_n_accepted < 4
    assert all(judged.n_judged == judged.n_accepted for judged in engine.judged)


@settings(max_examples=25, deadline=None)
@given(
    n_slots=st.integers(1, 4),
    grammars=st.lists(st.sampled_from([None, WORDS, SHORT, WRONG, FOREIGN]), max_size=7),
    cancel_at=st.dictionaries(st.integers(0, 6), st.integers(0, 12), max_size=3),
)
def test_slots_with_different_grammars_answer_as_each_alone(
    n_slots: int, grammars: list[Grammar | None], cancel_at: dict[int, int]
) -> None:
    engine = Guided(n_slots=n_slots, n_batch=80)
    for at, grammar in enumerate(grammars):
        engine.submit(at, seed=at, grammar=grammar, n_predict=60)
    for step in range(5000):
        for at, when in cancel_at.items():
            if when == step:
                engine.loop.cancel(at)
        if not engine.loop.is_busy:
            break
        engine.loop.step()
    for at, grammar in enumerate(grammars):
        ends = [m for m in engine.said if isinstance(m, Finished) and m.request_id == at]
        if at in cancel_at and not ends:
            continue
        alone = Guided(agreement=None)
        alone.submit(at, seed=at, grammar=grammar, n_predict=60)
        alone.run()
        assert engine.text(at) == alone.text(at)
        assert type(engine.end(at)) is type(alone.end(at))
        if grammar is SHORT:
            assert engine.text(at) in {"YES", "NO"}
    assert all(slot.state is SlotState.IDLE for slot in engine.loop.slots)
    for slot in engine.loop.slots:
        assert engine.target.cells[slot.id] == slot.tokens


@pytest.mark.parametrize("agreement", [None, 0.5, 1.0])
def test_an_answer_without_an_allowed_token_fails_after_its_text(
    agreement: float | None,
) -> None:
    engine = Guided(agreement=agreement)
    engine.submit(1, grammar=FOREIGN, n_draft_max=4, mode=SpeculationMode.FIXED)
    engine.run()
    assert engine.text(1) == "AB"
    failed = end_of(engine, 1)
    assert failed.kind is FailureKind.INVALID
    assert "grammar" in failed.message
    engine.submit(2, prompt=("HELLOABC",))
    engine.run()
    # Its tokens are still in the cache for the next request.
    assert engine.done(2).usage.n_cached == engine.done(2).usage.n_prompt - 1


def test_an_invalid_grammar_is_refused_and_delays_no_other_request() -> None:
    engine = Guided(n_slots=1)
    engine.submit(1, grammar=WRONG)
    engine.submit(2)
    engine.run()
    failed = end_of(engine, 1)
    assert failed.kind is FailureKind.INVALID
    assert failed.message.startswith("invalid GBNF grammar: Expected ::=")
    engine.done(2)


def test_a_request_waiting_for_its_grammar_is_overtaken_and_can_be_cancelled() -> None:
    engine, held = Guided(n_slots=1), Held()
    engine.loop.queue.compiler = held
    for request_id in (1, 2, 3):
        engine.submit(request_id, grammar=None if request_id == 2 else SHORT, n_predict=5)
    while not any(isinstance(m, Finished) for m in engine.said):
        engine.loop.step()
    engine.done(2)
    assert engine.loop.is_busy, "the others are still waiting"
    engine.loop.cancel(1)
    held.asked[1].set_result(COMPILER.compile(SHORT))
    engine.run()
    assert engine.text(3) in {"YES", "NO"}
    assert not any(isinstance(m, Finished) and m.request_id == 1 for m in engine.said)


@pytest.mark.parametrize("error", [OSError("no process to be had"), BaseException("panic")])
def test_a_failed_compilation_fails_one_request(error: BaseException) -> None:
    engine, held = Guided(n_slots=1), Held()
    engine.loop.queue.compiler = held
    engine.submit(1, grammar=SHORT)
    engine.submit(2)
    held.asked[0].set_exception(error)
    engine.run()
    assert str(error) in end_of(engine, 1).message
    engine.done(2)


def test_a_dead_grammar_process_is_an_engine_error() -> None:
    engine, held = Guided(n_slots=1), Held()
    engine.loop.queue.compiler = held
    engine.submit(1, grammar=SHORT)
    engine.submit(2)
    held.asked[0].set_exception(WorkerDied("ended by SIGTERM"))
    engine.run()
    failed = end_of(engine, 1)
    assert failed.kind is FailureKind.ENGINE
    assert failed.message == "the grammar could not be compiled: ended by SIGTERM"
    engine.done(2)


def test_requests_waiting_for_a_grammar_fail_at_shutdown() -> None:
    engine = Guided()
    engine.submit(1, grammar=WORDS)
    engine.loop.fail_all(FailureKind.SHUTDOWN, "bye")
    assert end_of(engine, 1).kind is FailureKind.SHUTDOWN
    assert not engine.loop.is_busy
