"""Compilation as requests meet it: bounded, off the loop's thread, done once."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait

import msgspec
import pytest

from specd.core import Grammar, GrammarKind, TokenId
from specd.engine.grammar import sandbox as sandbox_module
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.sandbox import Sandbox, _end, serve
from specd.errors import InvalidRequest
from tests.engine.grammar.vocabulary import ByteVocabulary

#: Minutes and gigabytes, if one lets it.
HOSTILE = Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"type":"integer","multipleOf":99999989}')
HARMLESS = Grammar(kind=GrammarKind.REGEX, text="a+")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox()
    sandbox.start()
    yield sandbox
    while not sandbox._idle.empty():
        _end(sandbox._idle.get())


def idle(sandbox: Sandbox) -> subprocess.Popen[bytes]:
    """The one that waits for work."""
    process = sandbox._idle.get()
    sandbox._idle.put(process)
    return process


def test_a_grammar_without_bounds_is_refused_in_bounded_time(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidRequest, match="invalid JSON schema: it is too complex"):
        sandbox.check(HOSTILE)
    assert "a grammar's compilation ended with -" in caplog.text
    sandbox.check(HARMLESS)


class Held(Sandbox):
    """Does not begin with the hostile one before others are through."""

    def __init__(self) -> None:
        super().__init__()
        self.others_are_through = threading.Event()

    def check(self, grammar: Grammar) -> None:
        if grammar == HOSTILE:
            assert self.others_are_through.wait(timeout=60)
        super().check(grammar)


def test_others_go_on_while_one_is_stopped() -> None:
    compiler = GrammarCompiler(ByteVocabulary())
    compiler._sandbox = held = Held()
    hostile = compiler.submit(HOSTILE)
    assert compiler.submit(HARMLESS).result().allows(ord("a"))
    held.others_are_through.set()
    assert isinstance(hostile.exception(), InvalidRequest)
    assert compiler.submit(HARMLESS).result().allows(ord("a"))


def test_the_sandbox_hands_on_what_is_wrong(sandbox: Sandbox) -> None:
    process = idle(sandbox)
    for _ in range(2):
        sandbox.check(HARMLESS)
        with pytest.raises(InvalidRequest, match=r"(?s)invalid regular expression: .*unclosed"):
            sandbox.check(Grammar(kind=GrammarKind.REGEX, text="(é\n"))
    assert idle(sandbox) is process, "it is kept"


def test_a_process_that_died_while_idle_is_replaced(sandbox: Sandbox) -> None:
    process = idle(sandbox)
    process.kill()
    process.wait()
    sandbox.check(HARMLESS)
    assert idle(sandbox) is not process


def test_a_process_that_keeps_too_much_is_replaced(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = idle(sandbox)
    monkeypatch.setattr(sandbox_module, "_asked", lambda *_: b"[null,true]\n")
    sandbox.check(HARMLESS)
    assert process.poll() is not None
    assert sandbox._idle.empty()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited so on Linux alone")
def test_a_process_says_whether_it_keeps_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = io.BytesIO()
    for most in (1 << 50, 1):
        monkeypatch.setattr(sandbox_module, "MEMORY_BYTES", most)
        serve(io.BytesIO(msgspec.json.encode(HARMLESS) + b"\n"), answers)
    assert answers.getvalue() == b"[null,false]\n[null,true]\n"
    assert signal.getitimer(signal.ITIMER_PROF) == signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_grammar_that_no_answer_fits_is_refused() -> None:
    endless = Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"$ref": "#"}')
    with pytest.raises(InvalidRequest, match="no answer can begin"):
        GrammarCompiler(ByteVocabulary()).compile(endless)


class Counting(ByteVocabulary):
    """Remembers which threads read it, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[int] = []

    def piece(self, token: TokenId) -> bytes:
        self.readers.append(threading.get_ident())
        return super().piece(token)


def test_the_callers_thread_reads_nothing_and_the_vocabulary_is_read_once() -> None:
    vocabulary = Counting()
    compiler = GrammarCompiler(vocabulary)
    assert not vocabulary.readers, "whoever needs no grammar pays for none"
    asked = [
        compiler.submit(Grammar(kind=GrammarKind.JSON)),
        compiler.submit(Grammar(kind=GrammarKind.REGEX, text="a(")),
        compiler.submit(Grammar(kind=GrammarKind.JSON)),
    ]
    wait(asked)
    assert len(vocabulary.readers) == vocabulary.n_vocab
    assert threading.get_ident() not in vocabulary.readers
    first, refused, second = asked
    assert isinstance(refused.exception(), InvalidRequest)
    # Two answers to the same grammar go their own ways.
    first.result().accept(ord("{"))
    assert second.result().n_accepted == 0
    assert not second.result().allows(ord("}"))
    assert first.result().allows(ord("}"))
