"""The process in which chat templates run: they are programs of strangers.

`python -m specd.prompt` answers jobs on stdin until it ends.  A template that takes
too much time ends the process; one that takes too much memory gets an error.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO, Final

import msgspec

from specd.core import Message
from specd.errors import InvalidRequest, SpecdError, StoreError
from specd.prompt.chat_template import render_chat

#: Of one rendering.  A conversation of a thousand turns takes a tenth of it.
CPU_S: Final = 2.0
#: For a machine that has no time for us, or a process that was stopped.
WALL_S: Final = 60.0
MEMORY_BYTES: Final = 1 << 30
#: A prompt that long fits no context.
MAX_PROMPT_BYTES: Final = 1 << 26

LENGTH: Final = struct.Struct("<I")
_TOO_LARGE: Final = "chat template: it takes more than its share of memory"


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What `render_chat` is asked; the images of the messages are left out."""

    template: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, object], ...] = ()
    bos_token: str = ""
    eos_token: str = ""
    think: bool | str | None = None


class Result(msgspec.Struct, frozen=True, array_like=True):
    """text: the prompt, or what is wrong.  damaged: with the model, not with the request."""

    text: str
    failed: bool = False
    damaged: bool = False

    def prompt(self) -> str:
        """Raises what `render_chat` raised."""
        if self.failed:
            raise StoreError(self.text) if self.damaged else InvalidRequest(self.text)
        return self.text


def do(job: Job) -> Result:
    try:
        prompt = render_chat(
            job.template,
            job.messages,
            tools=job.tools,
            bos_token=job.bos_token,
            eos_token=job.eos_token,
            think=job.think,
            adds_bos=False,
        )
    except SpecdError as error:
        return Result(str(error), failed=True, damaged=isinstance(error, StoreError))
    except MemoryError:
        return Result(_TOO_LARGE, failed=True)
    if len(prompt) > MAX_PROMPT_BYTES:
        return Result(_TOO_LARGE, failed=True)
    return Result(prompt)


def serve(jobs: BinaryIO, results: BinaryIO, limit: Callable[[float, float], None]) -> None:
    """limit: CPU and wall seconds until the process ends; 0 is no limit."""
    while head := jobs.read(LENGTH.size):
        job = msgspec.msgpack.decode(jobs.read(*LENGTH.unpack(head)), type=Job)
        limit(CPU_S, WALL_S)
        answer = msgspec.msgpack.encode(do(job))
        limit(0, 0)
        results.write(LENGTH.pack(len(answer)) + answer)
        results.flush()


def _limit(cpu_s: float, wall_s: float) -> None:
    """The signals of both clocks end a process that does not handle them."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def main() -> int:
    # Ctrl-C in a terminal reaches the whole group; the daemon decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    serve(sys.stdin.buffer, sys.stdout.buffer, _limit)
    return 0
