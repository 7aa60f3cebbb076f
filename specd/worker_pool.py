"""Work that need not end, done in processes that can be ended.

A template or a schema of a stranger may take minutes and gigabytes, and the libraries that read it
cannot be interrupted.  A process can: it answers one line with another, under limits, until its
stdin ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from specd.errors import WorkerDied

log = logging.getLogger(__name__)

_Process = subprocess.Popen[bytes]
_Idle = queue.LifoQueue[_Process]

#: Before each answer: whether the process can be asked again, or keeps too much of its memory.
_REUSABLE: Final = b"+"
_NOT_REUSABLE: Final = b"-"

#: What ends a process whose work takes too much time: the signals of its two clocks.
_TIMEOUT_SIGNALS: Final = (signal.SIGPROF, signal.SIGALRM)

#: Seconds between two looks at a process that works; how many there may be, which is longer than
#: any work is given; and in how many of them it may be stopped.
_POLL_S: Final = 1.0
_MAX_POLLS: Final = 100
_MAX_STOPPED_POLLS: Final = 5


#: What such a process inherits: how to run, and how to write a date.  No keys, no proxies, no home.
_INHERITED_VARIABLES: Final = frozenset({"PATH", "LD_LIBRARY_PATH", "LANG", "TZ"})
_INHERITED_PREFIXES: Final = ("LC_", "PYTHON", "COV_", "COVERAGE_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one piece of work.  wall_s: for a machine without time, or a process that stands still.

    memory_bytes: of address space; the work gets a MemoryError.
    """

    cpu_s: float
    wall_s: float
    memory_bytes: int


class WorkerPool:
    """The parent's side.  Safe to use from several threads, blocking."""

    def __init__(
        self,
        module: str,
        *,
        max_workers: int,
        max_idle: int,
        limit_signals: Collection[signal.Signals] = (),
    ) -> None:
        """module: what `python -m` starts, and what calls `work`.

        n_most: processes at once.  n_idle: of those that have nothing to do, so many are kept.
        work_ends_by: what work that exceeds its limits may end the process with, besides the
        signals of its two clocks.  Native code that is refused memory aborts, for instance.
        """
        self._limit_statuses = {-number for number in (*_TIMEOUT_SIGNALS, *limit_signals)}
        self._command = (sys.executable, "-m", module)
        self._slots = threading.Semaphore(max_workers)
        self._max_idle = max_idle
        self._idle: _Idle = queue.LifoQueue()
        weakref.finalize(self, _end_all, self._idle)

    def start(self) -> None:
        """Have a process ready, so that the first line need not wait for it."""
        if self._idle.qsize() < self._max_idle:
            self._idle.put(self._start_process())

    def call(self, line: bytes) -> bytes | None:
        """Return the answer to a line, neither with its end; None where it exceeds its limits.

        A process that ended in another way did not end by the limits of its work: a second one
        does that work.  Raises WorkerDied where the second one ends so, too.
        """
        with self._slots:
            answer, status = self._ask(line)
            if answer is None and status not in self._limit_statuses:
                answer, status = self._ask(line)
        if answer is None and status not in self._limit_statuses:
            raise WorkerDied(
                "the server's process for it crashed twice"
                f" (it {_describe_exit(status)}); try again, and see the server's log"
            )
        return None if answer is None else answer[1:]

    def _ask(self, line: bytes) -> tuple[bytes | None, int]:
        """The answer, or None and the status that the process ended with."""
        process = self._idle_process()
        try:
            with _kill_if_stalled(process, self._command[-1]):
                answer = _exchange_line(process, line)
        except BaseException:
            _end(process)
            raise
        if answer is None:
            _wait(process)
            status = _end(process)
            log.warning("%s %s over its work", self._command[-1], _describe_exit(status))
            return None, status
        if answer.startswith(_NOT_REUSABLE) or self._idle.qsize() >= self._max_idle:
            _end(process)
        else:
            self._idle.put(process)
        return answer, 0

    def close(self) -> None:
        _end_all(self._idle)

    def _idle_process(self) -> _Process:
        """One that waits for work; those that died meanwhile are forgotten."""
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return self._start_process()
            if process.poll() is None:
                return process
            _end(process)

    def _start_process(self) -> _Process:
        return subprocess.Popen(
            self._command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED_VARIABLES or name.startswith(_INHERITED_PREFIXES)
    }


def _exchange_line(process: _Process, line: bytes) -> bytes | None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line + b"\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    return answer[:-1] if answer.endswith(b"\n") else None


@contextlib.contextmanager
def _kill_if_stalled(process: _Process, name: str) -> Iterator[None]:
    """Kills it where its own clock cannot: stopped by a signal, or held by the kernel.

    In looks, as a parent that was stopped itself must not blame the child.
    """
    done = threading.Event()

    def watch() -> None:
        n_stopped = 0
        for _ in range(_MAX_POLLS):
            if done.wait(_POLL_S):
                return
            n_stopped = n_stopped + 1 if _is_stopped(process.pid) else 0
            if n_stopped >= _MAX_STOPPED_POLLS:
                break
        log.warning("%s stands still and is ended", name)
        process.kill()

    watcher = threading.Thread(target=watch, name="worker_pool", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _is_stopped(pid: int) -> bool:
    """By SIGSTOP, as far as can be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - imports nothing
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def _wait(process: _Process) -> None:
    """Let a process that has hung up end by itself, so that its status says why."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)


def _describe_exit(status: int) -> str:
    """In words: "ended by SIGSEGV", "ended with status 1"."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"ended by signal {-status}"


def _end(process: _Process) -> int:
    """What it ended with."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return process.wait()


def _end_all(processes: _Idle) -> None:
    while not processes.empty():
        _end(processes.get())


# --------------------------------------------------------------------------- the process


def run_worker(handler: Callable[[bytes], bytes], limits: Limits) -> int:
    """Answer the lines of stdin by `do` until there are no more: the exit status."""
    # Ctrl-C in a terminal reaches the whole group, as a hangup may; the parent decides when this
    # ends.
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes to pipes alone
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    serve_lines(handler, limits, sys.stdin.buffer, sys.stdout.buffer)
    return 0


def serve_lines(
    handler: Callable[[bytes], bytes], limits: Limits, lines: BinaryIO, output: BinaryIO
) -> None:
    for line in lines:
        # The signals of both clocks end a process that does not handle them.
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
        signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
        answer = handler(line[:-1])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # What earlier work has left behind is not the next one's to pay for.
        flag = _NOT_REUSABLE if _address_space_bytes() > limits.memory_bytes // 2 else _REUSABLE
        output.writelines((flag, answer, b"\n"))  # joined they would be a copy
        output.flush()


def _address_space_bytes() -> int:
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - imports nothing
        return int(file.read().split()[0]) * resource.getpagesize()
