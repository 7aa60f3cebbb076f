"""What an engine does when it does not do what it should: by the name of the fault.

A prompt's first word asks for one ("!killed"), or the file that FAKE_FAULT names: by the moment
("load", "prefill", "decode") and the fault, which happens once, for the file is removed.
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
    """As ggml does it."""
    sys.stderr.write("ggml.c:42: GGML_ASSERT(tensor) failed\n")
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
    """A frame of four gigabytes begins."""
    os.write(fd, b"\xff" * 64)
    signal.pause()


def _half(fd: int) -> None:
    """A frame that is cut short by the end."""
    os.write(fd, b"\x00\x00\x10\x00half")
    os.kill(os.getpid(), signal.SIGKILL)


def _hang_up(fd: int) -> None:
    """It lives, and says no more."""
    channel = socket.socket(fileno=os.dup(fd))
    channel.shutdown(socket.SHUT_RDWR)
    signal.pause()


def _grandchild(_fd: int) -> None:
    """Holds its socket and its output open, long after its death."""
    if os.fork() == 0:
        os.setsid()
        Path(os.environ["FAKE_GRANDCHILD"]).write_text(str(os.getpid()), encoding="ascii")
        time.sleep(600)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


DISASTERS: dict[str, Callable[[int], None]] = {
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
}


def suffer(moment: str, word: str, fd: int) -> None:
    """What is to happen at that moment, if anything.  word: of the prompt.  fd: of its socket."""
    if word.startswith("!") and word[1:] in DISASTERS:
        DISASTERS[word[1:]](fd)
    file = Path(os.environ.get("FAKE_FAULT", "/nonexistent"))
    try:
        when, fault = file.read_text(encoding="ascii").split()
    except FileNotFoundError:
        return
    if when == moment:
        file.unlink()
        DISASTERS[fault](fd)
