"""Rendering of untrusted chat templates in worker processes, `python -m specd.prompt`.

A template that takes too much time ends its process; one that takes too much memory fails.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from specd.core import Message, ToolCall
from specd.errors import InvalidRequest, SpecdError, StoreError, WorkerDied
from specd.prompt.chat_template import render_chat
from specd.worker_pool import Limits, WorkerPool, run_worker

log = logging.getLogger(__name__)

#: Limits of one rendering; a chat of a thousand messages takes a tenth of them.
LIMITS: Final = Limits(cpu_s=2.0, wall_s=60.0, memory_bytes=1 << 30)
#: A longer prompt fits no context.
MAX_PROMPT_BYTES: Final = 1 << 26
#: The longest known templates have some ten thousand.
MAX_TEMPLATE_CHARACTERS: Final = 2**20
#: Several, so that a template which runs into its limits does not block the others.
_N_PROCESSES: Final = 4

_TOO_LARGE: Final = "chat template: it needs too much memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The arguments of `render_chat`, without the messages' images."""

    template: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] = ()
    bos_token: str = ""
    eos_token: str = ""
    think: bool | str | None = None

    def encode(self) -> bytes:
        """Return JSON, because tools and calls may contain integers of any size."""
        return json.dumps(self, default=_fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> Job:
        job = json.loads(data)
        for message in job["messages"]:
            message["tool_calls"] = tuple(ToolCall(**call) for call in message["tool_calls"])
            message["images"] = tuple(message["images"])
        messages = tuple(Message(**message) for message in job.pop("messages"))
        return cls(messages=messages, tools=tuple(job.pop("tools")), **job)


def _fields(value: Job | Message | ToolCall) -> dict[str, object]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Outcome of a rendering.

    text: the prompt, or the error.  damaged: the template is at fault, not the request.
    """

    text: str
    failed: bool = False
    damaged: bool = False

    def encode(self) -> bytes:
        return json.dumps([self.text, self.failed, self.damaged]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Result:
        text, failed, damaged = json.loads(data)
        return cls(text=text, failed=failed, damaged=damaged)

    def prompt(self) -> str:
        """Return the prompt, or raise what `render_chat` raised."""
        if self.failed:
            raise StoreError(self.text) if self.damaged else InvalidRequest(self.text)
        return self.text


class Renderer:
    """Pool of rendering processes.  Its methods block; call them from any thread."""

    def __init__(self) -> None:
        self.workers = WorkerPool("specd.prompt", max_workers=_N_PROCESSES, max_idle=_N_PROCESSES)

    def render(self, job: Job) -> str:
        """Return the prompt, rendered in another process.

        Raises what `render_chat` raises, InvalidRequest if the template takes too long, and
        WorkerDied if two processes died without reaching a limit.
        """
        if len(job.template) > MAX_TEMPLATE_CHARACTERS:
            raise StoreError(
                "the model's chat template is damaged: it has more than"
                f" {MAX_TEMPLATE_CHARACTERS} characters"
            )
        try:
            answer = self.workers.call(job.encode())
        except WorkerDied as error:
            raise WorkerDied(f"chat template: {error}") from error
        if answer is None:
            raise InvalidRequest("chat template: it takes too long")
        return Result.decode(answer).prompt()

    def start(self) -> None:
        """Start a process now, so that the first prompt does not wait for it."""
        try:
            self.workers.start()
        except OSError as error:
            log.warning("cannot start a process for chat templates: %s", error)

    def close(self) -> None:
        self.workers.close()


def render_in_process(job: Job) -> str:
    """Render a trusted template in this process."""
    return render_job(job).prompt()


def render_job(job: Job) -> Result:
    """Render a template; return its prompt or its error."""
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
        return Result(text=str(error), failed=True, damaged=isinstance(error, StoreError))
    except MemoryError:
        return Result(text=_TOO_LARGE, failed=True)
    if len(prompt) > MAX_PROMPT_BYTES:
        return Result(text=_TOO_LARGE, failed=True)
    return Result(text=prompt)


def answer(line: bytes) -> bytes:
    """Decode a job, render it and return the encoded result."""
    try:
        return render_job(Job.decode(line)).encode()
    except MemoryError:
        return Result(text=_TOO_LARGE, failed=True).encode()


def main() -> int:
    return run_worker(answer, LIMITS)
