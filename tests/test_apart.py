"""Processes for work that need not end: kept, limited, replaced."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from specd import apart
from specd.apart import Limits, Workers, serve

LIMITS = Limits(cpu_s=5, wall_s=5, memory_bytes=1 << 50)
#: What it is asked goes to a renderer: any work will do.
PING = b'{"template": "", "messages": [], "tools": []}'


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers("specd.prompt", n_most=2, n_idle=1)
    workers.start()
    yield workers
    workers.close()


def idle(workers: Workers) -> subprocess.Popen[bytes]:
    """The one that waits for work."""
    (process,) = workers._idle.queue
    return process


def test_a_process_is_kept(workers: Workers) -> None:
    process = idle(workers)
    answers = {workers.ask(PING) for _ in range(3)}
    assert len(answers) == 1
    assert None not in answers
    assert idle(workers) is process


def test_one_that_died_while_idle_is_replaced(workers: Workers) -> None:
    process = idle(workers)
    process.kill()
    process.wait()
    assert workers.ask(PING) is not None
    assert idle(workers) is not process


@pytest.mark.parametrize("rest", [b"", b"+half of an ans"])
def test_one_that_dies_over_its_work_gives_no_answer(
    workers: Workers, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    process = idle(workers)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = io.BytesIO(rest)  # an end where its answer should be
    assert workers.ask(PING) is None
    assert "specd.prompt ended with" in caplog.text
    assert process.poll() is not None
    assert workers.ask(PING) is not None


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_one_that_is_stopped_or_killed_from_outside_costs_its_work_nothing(
    workers: Workers,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(apart, "_LOOK_S", 0.1)
    process = idle(workers)
    process.send_signal(number)
    if number == signal.SIGKILL:
        monkeypatch.setattr(process, "poll", lambda: None)  # it dies as it is asked
    assert workers.ask(PING) is not None
    assert process.wait() == -signal.SIGKILL
    assert idle(workers) is not process
    stands_still = ["specd.prompt stands still and is ended"] if number == signal.SIGSTOP else []
    assert caplog.messages == [*stands_still, "specd.prompt ended with -9 over its work"]


def test_a_prompt_longer_than_a_pipe_holds_up_nobody(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_LOOK_S", 0.1)
    idle(workers).send_signal(signal.SIGSTOP)
    assert workers.ask(PING.replace(b'""', b'"' + b"x" * 2**20 + b'"', 1)) is not None


def test_one_that_keeps_too_much_is_replaced(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = idle(workers)
    monkeypatch.setattr(apart, "_asked", lambda *_: b"-answer")
    assert workers.ask(PING) == b"answer"
    assert process.poll() is not None
    assert workers._idle.empty()


def test_who_is_interrupted_leaves_no_process(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = idle(workers)

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(apart, "_asked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.ask(PING)
    assert process.poll() is not None


def test_workers_that_are_forgotten_end_their_processes() -> None:
    workers = Workers("specd.prompt", n_most=1, n_idle=1)
    workers.start()
    process = idle(workers)
    del workers
    assert process.wait(timeout=20) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited so on Linux alone")
def test_a_process_says_whether_it_keeps_too_much() -> None:
    for limits, flag in (
        (LIMITS, b"+"),
        (Limits(cpu_s=5, wall_s=5, memory_bytes=1), b"-"),
    ):
        answers = io.BytesIO()
        serve(bytes.upper, limits, io.BytesIO(b"a\nb\n"), answers)
        assert answers.getvalue() == flag + b"A\n" + flag + b"B\n"
    assert signal.getitimer(signal.ITIMER_PROF) == signal.getitimer(signal.ITIMER_REAL) == (0, 0)
