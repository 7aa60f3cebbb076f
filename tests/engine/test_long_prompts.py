"""Texts that take seconds to tokenize delay no other request; too long ones are refused."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import BinaryIO

import pytest

from specd.core import Failed, FailureKind, Image, TokenId
from specd.engine import prompt_tokens
from specd.engine.embedder import Embedder
from specd.engine.prompt_tokens import MAX_AT_ONCE, PieceTokenizer
from specd.engine.worker import Worker
from specd.errors import InvalidRequest
from specd.ipc import codec
from specd.ipc.channel import EngineChannel
from specd.ipc.messages import Cancel, Finished, ToDaemon, Tokenize, Tokenized
from tests.engine.test_loop import VOCABULARY, Engine
from tests.fakes.backend import FakeVocabulary

LONG = "A" * (MAX_AT_ONCE + 1)
HUGE = "A" * (prompt_tokens.MAX_CHARACTERS + 1)


class Slow(FakeVocabulary):
    """Tokenizes a long text only after its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        if len(text) > MAX_AT_ONCE:
            self.gate.wait()
        return super().tokenize(text, add_bos=add_bos)


def test_other_slots_continue_while_a_long_prompt_is_tokenized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow()
    crowd = Engine(n_slots=2, n_ctx=400)
    monkeypatch.setattr(crowd.loop.prefill, "_vocabulary", slow)
    crowd.submit(1, prompt=[LONG])
    crowd.submit(2, prompt=["HELLO"])
    while not any(isinstance(m, Finished) and m.request_id == 2 for m in crowd.said):
        crowd.loop.step()
    assert not crowd.text(1)
    slow.gate.set()
    crowd.run()
    assert crowd.text(1)


def test_a_long_prompt_gives_the_same_tokens_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for most in (MAX_AT_ONCE, len(LONG)):
        monkeypatch.setattr("specd.engine.prompt_tokens.MAX_AT_ONCE", most)
        engine = Engine(n_ctx=400)
        engine.submit(1, prompt=[LONG], seed=3)
        engine.run()
        said.append((engine.text(1), engine.done(1).usage.n_prompt))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "prompt, said",
    [
        ([HUGE], "prompt too large: 16777217 characters"),
        (["A", HUGE[1:], "B"], "prompt too large: 16777218 characters"),
        ([Image(b"5 cat")] * (prompt_tokens.MAX_FILES + 1), "257 images in one prompt"),
    ],
)
def test_prompts_above_the_limits_are_refused_unread(
    prompt: Sequence[str | Image], said: str
) -> None:
    engine = Engine()
    engine.submit(1, prompt=prompt)
    failed = engine.end(1)
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.INVALID
    assert said in failed.message
    counted: list[object] = []
    PieceTokenizer(VOCABULARY).tokenize(prompt, counted.append, add_bos=True)
    [error] = counted
    assert isinstance(error, InvalidRequest)
    assert said in str(error)


def test_a_long_prompt_is_counted_in_a_thread() -> None:
    slow, counted = Slow(), []
    answered = threading.Event()

    def answer(found: list[TokenId] | InvalidRequest) -> None:
        counted.append(found)
        answered.set()

    PieceTokenizer(slow).tokenize([LONG], answer, add_bos=True)
    assert not counted
    slow.gate.set()
    assert answered.wait(10)
    assert counted == [VOCABULARY.tokenize(LONG, add_bos=True)]


def _message(said: BinaryIO) -> ToDaemon:
    length = codec.body_length(said.read(codec.HEADER.size))
    return codec.decode_to_daemon(said.read(length))


def test_a_cancelled_count_is_not_tokenized() -> None:
    slow = Slow()
    engine, daemon = socket.socketpair()
    with engine, daemon:
        channel = EngineChannel(engine)
        worker, loop, tokenizer = Worker(channel), Engine().loop, PieceTokenizer(slow)
        for request_id in (1, 2, 3, 4):
            worker.handle(Tokenize(request_id, (LONG,), True), loop, tokenizer)
        worker.handle(Cancel(3), loop, tokenizer)
        slow.gate.set()
        with daemon.makefile("rb") as said:
            answers = [_message(said) for _ in range(3)]
    assert {a.request_id for a in answers if isinstance(a, Tokenized)} == {1, 2, 4}


@pytest.mark.parametrize("n", [1, MAX_AT_ONCE + 1])
@pytest.mark.parametrize("token, said", [(2, "A"), (-1, "out of range"), (10**6, "out of range")])
def test_any_number_of_tokens_is_detokenized(n: int, token: TokenId, said: str) -> None:
    found: list[str | InvalidRequest] = []
    answered = threading.Event()

    def answer(text: str | InvalidRequest) -> None:
        found.append(text)
        answered.set()

    PieceTokenizer(VOCABULARY).detokenize([token] * n, answer)
    assert answered.wait(10)
    [text] = found
    if isinstance(text, InvalidRequest):
        assert said in str(text)
    else:
        assert text == said * n


class Encoder:
    n_ctx, n_shared, n_texts = 8, 8, 1

    def encode(self, texts: Sequence[Sequence[TokenId]]) -> list[tuple[float, ...]]:
        return [(1.0,) for _ in texts]


def test_an_embedder_has_the_same_size_limit() -> None:
    said: list[ToDaemon] = []
    Embedder(Encoder(), VOCABULARY, said.append).submit(1, HUGE, truncate=True)
    [finished] = said
    assert isinstance(finished, Finished)
    assert isinstance(finished.event, Failed)
    assert "prompt too large" in finished.event.message
