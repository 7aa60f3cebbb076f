"""Test the pool of processes for work that may not end: reuse, limits, replacement."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from specd import worker_pool
from specd.errors import WorkerDied
from specd.worker_pool import Limits, WorkerPool, serve_lines

LIMITS = Limits(cpu_s=5, wall_s=5, memory_bytes=1 << 50)
#: A job for a template renderer; the kind of work does not matter here.
PING = b'{"template": "", "messages": [], "tools": []}'


@pytest.fixture
def workers() -> Iterator[WorkerPool]:
    workers = WorkerPool("specd.prompt", max_workers=2, max_idle=1)
    workers.start()
    yield workers
    workers.close()


def idle(workers: WorkerPool) -> subprocess.Popen[bytes]:
    """Return the idle process."""
    (process,) = workers.idle.queue
    return process


def test_a_process_is_reused(workers: WorkerPool) -> None:
    process = idle(workers)
    answers = {workers.call(PING) for _ in range(3)}
    assert len(answers) == 1
    assert None not in answers
    assert idle(workers) is process


def test_a_process_that_died_while_idle_is_replaced(workers: WorkerPool) -> None:
    process = idle(workers)
    process.kill()
    process.wait()
    assert workers.call(PING) is not None
    assert idle(workers) is not process


@pytest.mark.parametrize("rest", [b"", b"+half of an ans"])
def test_a_process_that_closes_its_output_is_replaced(
    workers: WorkerPool,
    rest: bytes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_pool, "_POLL_S", 0.1)
    process = idle(workers)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = io.BytesIO(rest)  # end of file instead of an answer
    assert workers.call(PING) is not None
    assert caplog.messages == ["specd.prompt ended by SIGKILL during its work"]
    assert process.poll() is not None


DEATHS = [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGKILL, signal.SIGRTMIN]


def dying(workers: WorkerPool, by: int) -> None:
    """Make every new process end at its first job, by a signal or with an exit status."""
    end = f"sys.exit({by})"
    if isinstance(by, signal.Signals):
        end = f"signal.signal({int(by)}, signal.SIG_DFL); os.kill(os.getpid(), {int(by)})"
        if by in {signal.SIGKILL, signal.SIGSTOP}:
            end = f"os.kill(os.getpid(), {int(by)})"
    code = f"import os, resource, signal, sys; sys.stdin.readline(); {end}"
    workers.close()
    workers.command = (sys.executable, "-c", code)


@pytest.mark.parametrize("by", [*DEATHS, 1, 0], ids=str)
def test_work_that_kills_two_processes_raises_worker_died(workers: WorkerPool, by: int) -> None:
    dying(workers, by)
    how = f"ended with status {by}"
    if isinstance(by, signal.Signals):
        how = f"ended by {by.name}"
    with pytest.raises(
        WorkerDied, match=rf"worker process for this request crashed twice \(it {how}\); try again"
    ):
        workers.call(PING)


@pytest.mark.parametrize("by", [signal.SIGPROF, signal.SIGALRM], ids=str)
def test_work_that_a_timer_ends_is_not_repeated(
    workers: WorkerPool, by: int, caplog: pytest.LogCaptureFixture
) -> None:
    dying(workers, by)
    assert workers.call(PING) is None
    assert len(caplog.messages) == 1


def test_further_limit_signals_count_as_limits(caplog: pytest.LogCaptureFixture) -> None:
    workers = WorkerPool("specd.prompt", max_workers=1, max_idle=1, limit_signals=(signal.SIGABRT,))
    dying(workers, signal.SIGABRT)
    assert workers.call(PING) is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("number", [*DEATHS, signal.SIGSTOP], ids=str)
def test_work_of_a_process_killed_from_outside_is_repeated(
    workers: WorkerPool,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(worker_pool, "_POLL_S", 0.1)
    process = idle(workers)
    process.send_signal(number)
    if number != signal.SIGSTOP:
        monkeypatch.setattr(process, "poll", lambda: None)  # it seems alive when the job is sent
    assert workers.call(PING) is not None
    ending = signal.SIGKILL if number == signal.SIGSTOP else number
    assert process.wait() == -ending
    assert idle(workers) is not process
    stands_still = (
        ["killing specd.prompt: it makes no progress"] if number == signal.SIGSTOP else []
    )
    assert caplog.messages == [
        *stands_still,
        f"specd.prompt ended by {ending.name} during its work",
    ]


def test_a_prompt_longer_than_a_pipe_does_not_block(
    workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_POLL_S", 0.1)
    idle(workers).send_signal(signal.SIGSTOP)
    assert workers.call(PING.replace(b'""', b'"' + b"x" * 2**20 + b'"', 1)) is not None


def test_a_process_that_holds_too_much_memory_is_replaced(
    workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = idle(workers)
    monkeypatch.setattr(worker_pool, "_exchange_line", lambda *_: b"-answer")
    assert workers.call(PING) == b"answer"
    assert process.poll() is not None
    assert workers.idle.empty()


def test_an_interrupted_call_leaves_no_process(
    workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = idle(workers)

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_pool, "_exchange_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.call(PING)
    assert process.poll() is not None


def test_a_pool_without_references_ends_its_processes() -> None:
    workers = WorkerPool("specd.prompt", max_workers=1, max_idle=1)
    workers.start()
    process = idle(workers)
    del workers
    assert process.wait(timeout=20) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited so on Linux alone")
def test_a_process_reports_whether_it_holds_too_much_memory() -> None:
    for limits, flag in (
        (LIMITS, b"+"),
        (Limits(cpu_s=5, wall_s=5, memory_bytes=1), b"-"),
    ):
        answers = io.BytesIO()
        serve_lines(bytes.upper, limits, io.BytesIO(b"a\nb\n"), answers)
        assert answers.getvalue() == flag + b"A\n" + flag + b"B\n"
    assert signal.getitimer(signal.ITIMER_PROF) == signal.getitimer(signal.ITIMER_REAL) == (0, 0)
