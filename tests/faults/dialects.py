"""The same question in each dialect, and how an answer of each one ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

N_TOKENS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """body: the request for a prompt.  ends: whether an event must be the last of its stream.

    error: the error message in an event or a body; None if it has none.
    """

    path: str
    body: Callable[[str], dict[str, Any]]
    ends: Callable[[Any], bool]
    error: Callable[[Any], str | None]

    def events(self, raw: bytes) -> list[Any]:
        """Return the values in a stream's lines, or the data of its events."""
        text = raw.decode()
        if self.path.startswith("/api/"):
            return [json.loads(line) for line in text.splitlines()]
        data = [line.removeprefix("data: ") for line in text.splitlines() if "data: " in line]
        return [said if said == "[DONE]" else json.loads(said) for said in data]

    def told(self, status: int, raw: bytes) -> str:
        """Return the single error that an answer ends with, streamed or not."""
        if status != 200:
            return _only(self.error(json.loads(raw)))
        events = self.events(raw)
        assert [event for event in events if self.ends(event)] == events[-1:], events
        return _only(self.error(events[-1]))

    def is_whole(self, status: int, raw: bytes) -> bool:
        """Return whether a stream ended exactly once and without an error."""
        events = self.events(raw)
        ends = [event for event in events if self.ends(event)]
        return status == 200 and ends == events[-1:] and self.error(events[-1]) is None


def _only(error: str | None) -> str:
    assert error is not None
    return error


def _field(*names: str) -> Callable[[Any], str | None]:
    def of(event: Any) -> str | None:
        for name in names:
            event = event.get(name) if isinstance(event, dict) else None
        return event if isinstance(event, str) else None

    return of


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _ends_in_ollama(event: Any) -> bool:
    return "error" in event or event["done"]


def _ends_in_openai(event: Any) -> bool:
    return event == "[DONE]" or "error" in event


def _response_error(event: Any) -> str | None:
    """Return the error: inside the response of a last event, or the body's error itself."""
    whole = event.get("response", event)
    return _field("error", "message")(whole)


_OPTIONS = {"options": {"num_predict": N_TOKENS, "temperature": 0}}

DIALECTS = {
    "generate": Dialect(
        path="/api/generate",
        body=lambda prompt: {"prompt": prompt, **_OPTIONS},
        ends=_ends_in_ollama,
        error=_field("error"),
    ),
    "chat": Dialect(
        path="/api/chat",
        body=lambda prompt: {"messages": _messages(prompt), **_OPTIONS},
        ends=_ends_in_ollama,
        error=_field("error"),
    ),
    "openai-chat": Dialect(
        path="/v1/chat/completions",
        body=lambda prompt: {"messages": _messages(prompt), "max_tokens": N_TOKENS},
        ends=_ends_in_openai,
        error=_field("error", "message"),
    ),
    "openai-completions": Dialect(
        path="/v1/completions",
        body=lambda prompt: {"prompt": prompt, "max_tokens": N_TOKENS},
        ends=_ends_in_openai,
        error=_field("error", "message"),
    ),
    "openai-responses": Dialect(
        path="/v1/responses",
        body=lambda prompt: {"input": prompt, "max_output_tokens": N_TOKENS},
        ends=lambda event: (
            event["type"].removeprefix("response.")
            in {"completed", "failed", "incomplete", "error"}
        ),
        error=_response_error,
    ),
    "anthropic": Dialect(
        path="/v1/messages",
        body=lambda prompt: {"messages": _messages(prompt), "max_tokens": N_TOKENS},
        ends=lambda event: event["type"] in {"message_stop", "error"},
        error=_field("error", "message"),
    ),
}
