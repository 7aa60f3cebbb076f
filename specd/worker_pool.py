"""Worker processes for work that may not end, such as untrusted templates and schemas.

They may take minutes and gigabytes, and the libraries that read them cannot be interrupted.  A
process can be killed.  It answers each line of its stdin with one line, under limits.
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

#: Prefix of each answer: whether the process can be reused, or holds too much memory.
_REUSABLE: Final = b"+"
_NOT_REUSABLE: Final = b"-"

#: Signals of the CPU timer and the wall timer, which end work that takes too long.
_TIMEOUT_SIGNALS: Final = (signal.SIGPROF, signal.SIGALRM)

#: Seconds between two checks of a busy process; checks before it is killed, which is longer than
#: any wall limit; and consecutive checks that may find it stopped.
_POLL_S: Final = 1.0
_MAX_POLLS: Final = 100
_MAX_STOPPED_POLLS: Final = 5


#: Variables that workers inherit: how to run, and the locale.  No keys, no proxies, no home.
_INHERITED_VARIABLES: Final = frozenset({"PATH", "LD_LIBRARY_PATH", "LANG", "TZ"})
_INHERITED_PREFIXES: Final = ("LC_", "PYTHON", "COV_", "COVERAGE_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one piece of work.

    cpu_s: seconds of CPU time.  wall_s: seconds, for an overloaded machine or a blocked process.
    memory_bytes: address space; the work gets a MemoryError beyond it.
    """

    cpu_s: float
    wall_s: float
    memory_bytes: int


class WorkerPool:
    """A pool of worker processes.  Its methods block; any thread may call them."""

    def __init__(
        self,
        module: str,
        *,
        max_workers: int,
        max_idle: int,
        limit_signals: Collection[signal.Signals] = (),
    ) -> None:
        """Create an empty pool.

        module: name for `python -m`; it must call `run_worker`.  max_workers: busy processes.
        max_idle: idle processes to keep.  limit_signals: signals that also mean exceeded limits,
        beside those of the two timers.  For instance, native code aborts if memory is refused.
        """
        self._limit_statuses = {-number for number in (*_TIMEOUT_SIGNALS, *limit_signals)}
        self.command = (sys.executable, "-m", module)
        self._slots = threading.Semaphore(max_workers)
        self._max_idle = max_idle
        self.idle: _Idle = queue.LifoQueue()
        weakref.finalize(self, _end_all, self.idle)

    def start(self) -> None:
        """Start a process, so that the first call need not wait for it."""
        if self.idle.qsize() < self._max_idle:
            self.idle.put(self._start_process())

    def call(self, line: bytes) -> bytes | None:
        """Return the answer to a line, both without line feed; None if it exceeds the limits.

        If the process dies of anything else, a second process gets the line.
        Raises WorkerDied if the second one dies too.
        """
        with self._slots:
            answer, status = self._ask(line)
            if answer is None and status not in self._limit_statuses:
                answer, status = self._ask(line)
        if answer is None and status not in self._limit_statuses:
            raise WorkerDied(
                "the server's worker process for this request crashed twice"
                f" (it {_describe_exit(status)}); try again, and see the server's log"
            )
        return None if answer is None else answer[1:]

    def _ask(self, line: bytes) -> tuple[bytes | None, int]:
        """Return the answer and 0, or None and the exit status of the process."""
        process = self._idle_process()
        try:
            with _kill_if_stalled(process, self.command[-1]):
                answer = _exchange_line(process, line)
        except BaseException:
            _end(process)
            raise
        if answer is None:
            _wait(process)
            status = _end(process)
            log.warning("%s %s during its work", self.command[-1], _describe_exit(status))
            return None, status
        if answer.startswith(_NOT_REUSABLE) or self.idle.qsize() >= self._max_idle:
            _end(process)
        else:
            self.idle.put(process)
        return answer, 0

    def close(self) -> None:
        _end_all(self.idle)

    def _idle_process(self) -> _Process:
        """Return an idle process that still runs, or a new one."""
        while True:
            try:
                process = self.idle.get_nowait()
            except queue.Empty:
                return self._start_process()
            if process.poll() is None:
                return process
            _end(process)

    def _start_process(self) -> _Process:
        return subprocess.Popen(
            self.command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
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
    """Kill a process that its own timers cannot end: stopped, or blocked in the kernel.

    Checks are counted instead of seconds, because the daemon itself may have been stopped.
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
        log.warning("killing %s: it makes no progress", name)
        process.kill()

    watcher = threading.Thread(target=watch, name="worker_pool", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _is_stopped(pid: int) -> bool:
    """Return whether a signal stopped the process; False where /proc does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - imports nothing
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def _wait(process: _Process) -> None:
    """Wait briefly for a process that closed its stdout, so that its status shows the cause."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)


def _describe_exit(status: int) -> str:
    """Return a text like "ended by SIGSEGV" or "ended with status 1"."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"ended by signal {-status}"


def _end(process: _Process) -> int:
    """Kill the process and return its exit status."""
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
    """Answer the lines of stdin with `handler` until it ends; return the exit status."""
    # Ctrl-C and a hangup reach the whole process group; the parent decides when this process ends.
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it only writes to pipes
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    serve_lines(handler, limits, sys.stdin.buffer, sys.stdout.buffer)
    return 0


def serve_lines(
    handler: Callable[[bytes], bytes], limits: Limits, lines: BinaryIO, output: BinaryIO
) -> None:
    for line in lines:
        # The signals of both timers end a process that does not handle them.
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
        signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
        answer = handler(line[:-1])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Memory that earlier work left behind must not count against the next.
        flag = _NOT_REUSABLE if _address_space_bytes() > limits.memory_bytes // 2 else _REUSABLE
        output.writelines((flag, answer, b"\n"))  # joined they would be a copy
        output.flush()


def _address_space_bytes() -> int:
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - imports nothing
        return int(file.read().split()[0]) * resource.getpagesize()
