"""The daemon's side of the processes in which chat templates run."""

from __future__ import annotations

import contextlib
import logging
import queue
import subprocess
import sys
import threading
from typing import Final

from specd.errors import InvalidRequest
from specd.prompt.render_process import CPU_S, LENGTH, Job, Result

log = logging.getLogger(__name__)

_COMMAND: Final = (sys.executable, "-m", "specd.prompt")
#: As many may run at once; a template that is being stopped leaves the others free.
_N_PROCESSES: Final = 4


class Renderer:
    """Renders in other processes, which are kept; safe to call from several threads, blocking."""

    def __init__(self) -> None:
        self._idle: queue.LifoQueue[subprocess.Popen[bytes]] = queue.LifoQueue()
        self._places = threading.Semaphore(_N_PROCESSES)

    def render(self, job: Job) -> str:
        """Raises as `render_chat` does; InvalidRequest where the template takes too long."""
        data = job.encode()
        with self._places:
            process = self._process()
            try:
                answer = _asked(process, data)
            except BaseException:
                _end(process)
                raise
            if answer is None:
                _end(process)
                log.warning("a chat template was stopped after %.0f s", CPU_S)
                raise InvalidRequest("chat template: it takes too long")
            self._idle.put(process)
        return Result.decode(answer).prompt()

    def start(self) -> None:
        """Have a process ready, so that the first prompt need not wait for it."""
        try:
            self._idle.put(_started())
        except OSError as error:
            log.warning("no process for chat templates can be started: %s", error)

    def close(self) -> None:
        while not self._idle.empty():
            _end(self._idle.get())

    def _process(self) -> subprocess.Popen[bytes]:
        """One that waits for work; those that died meanwhile are forgotten."""
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return _started()
            if process.poll() is None:
                return process
            _end(process)


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _asked(process: subprocess.Popen[bytes], data: bytes) -> bytes | None:
    """The answer; None where the process ended over it."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(LENGTH.pack(len(data)) + data)
        process.stdin.flush()
    except BrokenPipeError:
        return None
    head = process.stdout.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    answer = process.stdout.read(length)
    return answer if len(answer) == length else None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    process.wait()
