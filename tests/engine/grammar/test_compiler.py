"""Compilation of grammars: with limits, outside of the loop's thread, once for each grammar."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from specd.core import Grammar, GrammarKind, TokenId
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.sandbox import Sandbox
from specd.errors import InvalidRequest, WorkerDied
from tests.engine.grammar.vocabulary import ByteVocabulary

#: A schema that takes minutes and gigabytes without limits.
HOSTILE = Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"type":"integer","multipleOf":99999989}')
HARMLESS = Grammar(kind=GrammarKind.REGEX, text="a+")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox()
    sandbox.start()
    yield sandbox
    sandbox.workers.close()


def test_a_grammar_without_bounds_is_refused_in_bounded_time(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidRequest, match="invalid JSON schema: it is too complex"):
        sandbox.check(HOSTILE)
    assert "specd.engine.grammar.sandbox ended by SIG" in caplog.text
    sandbox.check(HARMLESS)


@pytest.mark.parametrize("by", [signal.SIGABRT, signal.SIGSEGV], ids=str)
def test_a_crash_of_the_compiler_refuses_the_grammar(sandbox: Sandbox, by: signal.Signals) -> None:
    _die(sandbox, by)
    with pytest.raises(InvalidRequest, match="it is too complex"):
        sandbox.check(HARMLESS)


def test_killed_processes_are_no_fault_of_the_grammar(
    sandbox: Sandbox,
) -> None:
    _die(sandbox, signal.SIGTERM)
    with pytest.raises(WorkerDied, match="SIGTERM"):
        sandbox.check(HARMLESS)


def _die(sandbox: Sandbox, by: signal.Signals) -> None:
    """Replace the sandbox's workers by processes that end by this signal at each request."""
    sandbox.workers.close()
    code = f"import os, sys; sys.stdin.readline(); os.kill(os.getpid(), {int(by)})"
    sandbox.workers.command = (sys.executable, "-c", code)


class Held(Sandbox):
    """Check the hostile grammar only after the other grammars are finished."""

    def __init__(self) -> None:
        super().__init__()
        self.others_are_through = threading.Event()

    def check(self, grammar: Grammar) -> None:
        if grammar == HOSTILE:
            assert self.others_are_through.wait(timeout=60)
        super().check(grammar)


def test_other_grammars_compile_while_one_is_stopped() -> None:
    compiler = GrammarCompiler(ByteVocabulary())
    compiler.sandbox = held = Held()
    hostile = compiler.submit(HOSTILE)
    assert compiler.submit(HARMLESS).result().allows(ord("a"))
    held.others_are_through.set()
    assert isinstance(hostile.exception(), InvalidRequest)
    assert compiler.submit(HARMLESS).result().allows(ord("a"))


def test_the_sandbox_reports_the_error(sandbox: Sandbox) -> None:
    for _ in range(2):
        sandbox.check(HARMLESS)
        with pytest.raises(InvalidRequest, match=r"(?s)invalid regular expression: .*unclosed"):
            sandbox.check(Grammar(kind=GrammarKind.REGEX, text="(é\n"))


def test_a_grammar_that_no_answer_fits_is_refused() -> None:
    endless = Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"$ref": "#"}')
    with pytest.raises(InvalidRequest, match="can begin an answer"):
        GrammarCompiler(ByteVocabulary()).compile(endless)


class Counting(ByteVocabulary):
    """Record which threads read the vocabulary, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[int] = []

    def piece(self, token: TokenId) -> bytes:
        self.readers.append(threading.get_ident())
        return super().piece(token)


def test_the_vocabulary_is_read_once_in_another_thread() -> None:
    vocabulary = Counting()
    compiler = GrammarCompiler(vocabulary)
    assert not vocabulary.readers, "requests without a grammar must not build the token table"
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
    # Two answers with the same grammar have independent states.
    first.result().accept(ord("{"))
    assert second.result().n_accepted == 0
    assert not second.result().allows(ord("}"))
    assert first.result().allows(ord("}"))
