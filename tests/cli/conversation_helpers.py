"""A conversation with a fake daemon, and typed lines."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from specd.cli.client import Client
from specd.cli.conversation import Conversation
from specd.cli.terminal_output import Screen
from tests.cli.fake_daemon import FakeDaemon, Json

FINAL: Json = {
    "done": True,
    "total_duration": 5_250_000_000,
    "load_duration": 12_500_000,
    "prompt_eval_count": 5,
    "prompt_eval_duration": 10**9,
    "eval_count": 100,
    "eval_duration": 4 * 10**9,
    "speculation": {
        "drafter": "small",
        "draft_n": 80,
        "draft_n_accepted": 60,
        "state": "active",
        "reason": "",
        "speedup": 1.5,
    },
}
SHOWN: Json = {"capabilities": ["completion"]}


def conversation(url: str, **fields: Any) -> tuple[Conversation, io.StringIO, io.StringIO]:
    """Return the screen, its output and its notes."""
    out, notes = io.StringIO(), io.StringIO()
    screen = Screen(out, Console(file=notes, width=200), is_terminal=False)
    return Conversation(Client(url), screen, "m", **fields), out, notes


def counting(body: Json) -> list[Json]:
    """Return the lines of a chat's answer: the number of its messages."""
    said = f"answer {len(body['messages'])}"
    return [{"message": {"content": said}}, {"message": {"content": ""}, "done": True}]


def daemon(shown: Json | None = None, **answers: Any) -> FakeDaemon:
    """Return a fake daemon.  answers: by the last part of their path."""
    usual = {"show": {**SHOWN, **(shown or {})}, "generate": {"done": True}, "chat": counting}
    return FakeDaemon({f"/api/{name}": answer for name, answer in {**usual, **answers}.items()})


def asked_of(fake: FakeDaemon, name: str) -> list[Json]:
    return [body for path, body in fake.asked if path == f"/api/{name}"]


def typed(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """Return a function that reads these lines; then the input ends."""
    rest: Iterator[str | type[BaseException]] = iter(lines)

    def read_line(_prompt: str) -> str:
        line = next(rest, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read_line
