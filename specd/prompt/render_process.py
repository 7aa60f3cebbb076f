"""The worker process `python -m specd.prompt`, which renders untrusted chat templates.

A template that takes too much time ends the process; one that takes too much memory fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specd.core import Message, ToolCall
from specd.errors import InvalidRequest, SpecdError, StoreError
from specd.prompt.chat_template import render_chat
from specd.worker_pool import Limits, run_worker

#: Limits of one rendering; a chat of a thousand messages takes a tenth of them.
LIMITS: Final = Limits(cpu_s=2.0, wall_s=60.0, memory_bytes=1 << 30)
#: A longer prompt fits no context.
MAX_PROMPT_BYTES: Final = 1 << 26

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
        fields = {name: getattr(self, name) for name in _TEXTS}
        messages = [_fields(message, _MESSAGE) for message in self.messages]
        for sent, message in zip(messages, self.messages, strict=True):
            sent["tool_calls"] = [_fields(call, _CALL) for call in message.tool_calls]
        return json.dumps(fields | {"messages": messages, "tools": self.tools}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Job:
        fields = json.loads(data)
        for message in fields["messages"]:
            message["tool_calls"] = tuple(ToolCall(**call) for call in message["tool_calls"])
        messages = tuple(Message(**message) for message in fields.pop("messages"))
        return cls(messages=messages, tools=tuple(fields.pop("tools")), **fields)


_TEXTS: Final = ("template", "bos_token", "eos_token", "think")
_MESSAGE: Final = ("role", "content", "thinking", "tool_name", "tool_call_id")
_CALL: Final = ("name", "arguments", "id", "index")


def _fields(value: object, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(value, name) for name in names}


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
