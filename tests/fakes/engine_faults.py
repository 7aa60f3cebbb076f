"""Faults of an engine, by name.

A prompt's first word asks for one ("!killed"); or a file does, of the weights' name in the folder
FAKE_FAULTS.  Each of its lines is a moment ("load", "prefill", "decode", in the real engine also
"late") and a fault, and happens once: the first line is always the next.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path


def _signal(number: signal.Signals) -> Callable[[int], None]:
    def do(_fd: int) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)

    return do


def _assert(_fd: int) -> None:
    """Print a failed assertion and abort, as ggml does."""
    # As llama.cpp does: with the folder in which it was compiled.
    sys.stderr.write("/build/vendor/llama.cpp/ggml/src/ggml.c:42: GGML_ASSERT(tensor) failed\n")
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def _exit(_fd: int) -> None:
    os._exit(0)


def _block(_fd: int) -> None:
    signal.pause()


def _garbage(fd: int) -> None:
    os.write(fd, b"\x00\x00\x00\x05chaos")
    signal.pause()


def _huge(fd: int) -> None:
    """Send the start of a frame of four gigabytes."""
    os.write(fd, b"\xff" * 64)
    signal.pause()


def _half(fd: int) -> None:
    """Send a part of a frame, then end the process."""
    os.write(fd, b"\x00\x00\x10\x00half")
    os.kill(os.getpid(), signal.SIGKILL)


def _hang_up(fd: int) -> None:
    """Close the socket, but keep the process alive."""
    channel = socket.socket(fileno=os.dup(fd))
    channel.shutdown(socket.SHUT_RDWR)
    signal.pause()


def _grandchild(_fd: int) -> None:
    """Start a child that keeps the socket and the output open after the engine's death."""
    if os.fork() == 0:
        os.setsid()
        Path(os.environ["FAKE_GRANDCHILD"]).write_text(str(os.getpid()), encoding="ascii")
        time.sleep(600)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def _starve(_fd: int) -> None:
    """Limit the process to its current memory: the kernel may refuse memory like this."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - of itself
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held, held))


ENGINE_FAULTS: dict[str, Callable[[int], None]] = {
    "killed": _signal(signal.SIGKILL),
    "terminated": _signal(signal.SIGTERM),
    "segfault": _signal(signal.SIGSEGV),
    "abort": _assert,
    "exit": _exit,
    "stop": _signal(signal.SIGSTOP),
    "block": _block,
    "garbage": _garbage,
    "huge": _huge,
    "half": _half,
    "hang-up": _hang_up,
    "grandchild": _grandchild,
    "starve": _starve,
}


class Script:
    """What happens to one engine, and when.  fd: of its socket.

    pace_s: how long a pass of the real one takes at least, from the same name with `.pace`.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._file = Path("/nonexistent")
        self.pace_s = 0.0

    def loads(self, weights: str) -> None:
        self._file = Path(os.environ.get("FAKE_FAULTS", "/nonexistent")) / Path(weights).name
        pace = self._file.with_suffix(".pace")
        self.pace_s = float(pace.read_text(encoding="ascii")) if pace.exists() else 0.0

    def prompted(self, word: str) -> None:
        if word.startswith("!") and word[1:] in ENGINE_FAULTS:
            ENGINE_FAULTS[word[1:]](self._fd)

    def at(self, moment: str) -> None:
        """Run the file's next fault if this is its moment."""
        try:
            next_one, *others = self._file.read_text(encoding="ascii").splitlines()
        except (FileNotFoundError, ValueError):
            return
        when, fault = next_one.split()
        if when == moment:
            self._file.write_text("\n".join(others), encoding="ascii")
            ENGINE_FAULTS[fault](self._fd)
