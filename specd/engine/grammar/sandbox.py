"""A first compilation where it can do no harm: some short schemas take minutes and gigabytes.

Few properties with `minProperties`, a large `multipleOf`, or `allOf` over patterns are enough, and
the library cannot be interrupted.  A process can: `python -m specd.engine.grammar.sandbox` answers
one line with another until its stdin ends.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import resource
import signal
import subprocess
import sys
import weakref
from typing import BinaryIO, Final

import msgspec
from llguidance import LLTokenizer

from specd.core import Grammar
from specd.engine.grammar.source import compiled, refusal
from specd.errors import InvalidRequest
from specd.ipc import lifeline

log = logging.getLogger("specd.engine")

#: Limits of one compilation; waiting for a busy machine is no fault of the grammar.
CPU_S: Final = 2.0
WALL_S: Final = 20.0
MEMORY_BYTES: Final = 1 << 30

_COMMAND: Final = (sys.executable, "-m", "specd.engine.grammar.sandbox")
#: To start one takes longer than most compilations; more than one is for crowds.
_N_IDLE: Final = 1

_Process = subprocess.Popen[bytes]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """refusal: what is wrong with the grammar.  is_spent: whether the process keeps too much."""

    refusal: str | None = None
    is_spent: bool = False


class Sandbox:
    """Checks grammars in a process that is kept.  Safe to use from several threads, blocking."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        weakref.finalize(self, _end_all, self._idle)

    def start(self) -> None:
        """Have a process ready, so that the first grammar need not wait for it."""
        if self._idle.qsize() < _N_IDLE:
            self._idle.put(_started())

    def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequest where the grammar is wrong or too much to compile."""
        process = self._process()
        try:
            line = _asked(process, msgspec.json.encode(grammar))
        except BaseException:
            _end(process)
            raise
        if not line.endswith(b"\n"):
            log.warning("a grammar's compilation ended with %d", _end(process))
            self.start()
            raise refusal(grammar, "it is too complex to be compiled")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.is_spent or self._idle.qsize() >= _N_IDLE:
            _end(process)
        else:
            self._idle.put(process)
        if answer.refusal is not None:
            raise InvalidRequest(answer.refusal)

    def _process(self) -> _Process:
        """One that waits for work; those that died meanwhile are forgotten."""
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return _started()
            if process.poll() is None:
                return process
            _end(process)


def _started() -> _Process:
    return subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _asked(process: _Process, line: bytes) -> bytes:
    """The answer; no whole line where the process ended over it."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line + b"\n")
        process.stdin.flush()
    return process.stdout.readline()


def _end(process: _Process) -> int:
    """What it ended with."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return process.wait()


def _end_all(processes: queue.SimpleQueue[_Process]) -> None:
    while not processes.empty():
        _end(processes.get())


def do(grammar: Grammar) -> Answer:
    try:
        # The cost of compiling is the grammar's own: a vocabulary of bytes shows it.
        compiled(grammar, LLTokenizer("byte"))
    except InvalidRequest as error:
        return Answer(str(error))
    return Answer()


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """The signals of both clocks end a process that does not handle them."""
    for line in jobs:
        grammar = msgspec.json.decode(line, type=Grammar)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_REAL, WALL_S)
        answer = do(grammar)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answer = msgspec.structs.replace(answer, is_spent=_held_bytes() > MEMORY_BYTES // 2)
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def _held_bytes() -> int:
    """What earlier grammars have left behind is not the next one's to pay for."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> int:
    lifeline.die_with_parent()
    # Ctrl-C in a terminal reaches the whole group; the engine decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
