"""Recognise the end of an answer in each API dialect."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Dialect(StrEnum):
    """The form of an answer.  OBJECT: JSON on a model or the daemon.  TEXT: not JSON."""

    OLLAMA = "Ollama"
    OPENAI = "OpenAI chat"
    COMPLETIONS = "OpenAI completions"
    RESPONSES = "OpenAI responses"
    ANTHROPIC = "Anthropic"
    VECTORS = "embeddings"
    OBJECT = "objects"
    TEXT = "text"


class BadResponse(Exception):
    """The response does not follow its dialect; the text says how."""


@dataclass(slots=True)
class Reading:
    """The events that a client has read.

    n_ends: events that end the answer, with success or an error.
    n_late: events after the first of them.  error: the text of an error at the end.
    """

    text: str = ""
    n_events: int = 0
    n_ends: int = 0
    n_late: int = 0
    error: str = ""
    parts: list[str] = field(default_factory=list)

    def take(self, dialect: Dialect, event: Any) -> None:
        """Add one event of a stream: JSON, or "[DONE]"."""
        self.n_events += 1
        self.n_late += self.n_ends > 0
        text, ends, error = _READERS[dialect](event)
        self.parts.append(text)
        self.n_ends += ends
        self.error = self.error or error


def events_of(line: bytes, *, sse: bool) -> Any | None:
    """Return the event in one line of a stream; None for an empty one.  Raises BadResponse."""
    line = line.strip()
    if sse:
        if not line.startswith(b"data:"):
            return None
        line = line.removeprefix(b"data:").strip()
        if line == b"[DONE]":
            return "[DONE]"
    if not line:
        return None
    try:
        return json.loads(line)
    except ValueError:
        raise BadResponse(f"no JSON: {line[:80]!r}") from None


def whole(dialect: Dialect, status: int, body: bytes) -> Reading:
    """Read an answer that was not streamed.  Raises BadResponse."""
    if dialect is Dialect.TEXT or (status >= 400 and not body.startswith(b"{")):
        words = body.decode(errors="replace")
        return Reading(n_events=1, n_ends=1, error=words if status >= 400 else "")
    try:
        answer = json.loads(body) if body else {}
    except ValueError:
        raise BadResponse(f"no JSON: {body[:80]!r}") from None
    reading = Reading(n_events=1)
    if status >= 400:
        reading.error = error_of(answer)
        reading.n_ends = int(bool(reading.error))
    else:
        reading.text, reading.n_ends = _WHOLE[dialect](answer), 1
    return reading


def error_of(event: Any) -> str:
    """Return the text of an error in any dialect, "" without one."""
    error = event.get("error") if isinstance(event, dict) else None
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error or "")


# ------------------------------------------------- one event → text, ends it (0 or 1), error

_Read = tuple[str, int, str]


def _ollama(event: Any) -> _Read:
    if error := error_of(event):
        return "", 1, error
    text = event["response"] if "response" in event else event["message"]["content"]
    return text, int(event["done"]), ""


def _openai(event: Any) -> _Read:
    if event == "[DONE]":
        return "", 1, ""
    if error := error_of(event):
        return "", 1, error
    deltas = [choice["delta"] for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas), 0, ""


def _completions(event: Any) -> _Read:
    if event == "[DONE]":
        return "", 1, ""
    if error := error_of(event):
        return "", 1, error
    return "".join(choice["text"] for choice in event["choices"]), 0, ""


def _responses(event: Any) -> _Read:
    match event["type"]:
        case "response.output_text.delta":
            return event["delta"], 0, ""
        case "response.completed" | "response.incomplete":
            return "", 1, ""
        case "response.failed":
            return "", 1, error_of(event["response"]) or "failed"
        case "error":
            return "", 1, error_of(event) or str(event.get("message"))
    return "", 0, ""


def _anthropic(event: Any) -> _Read:
    match event["type"]:
        case "content_block_delta":
            return event["delta"].get("text", ""), 0, ""
        case "message_stop":
            return "", 1, ""
        case "error":
            return "", 1, error_of(event)
    return "", 0, ""


_READERS = {
    Dialect.OLLAMA: _ollama,
    Dialect.OPENAI: _openai,
    Dialect.COMPLETIONS: _completions,
    Dialect.RESPONSES: _responses,
    Dialect.ANTHROPIC: _anthropic,
}


# ------------------------------------------------------------- one object → the answer's text


def _whole_ollama(answer: Any) -> str:
    if not answer["done"]:
        raise BadResponse("not done")
    return str(answer["response"] if "response" in answer else answer["message"]["content"])


def _whole_openai(answer: Any) -> str:
    [choice] = answer["choices"]
    if not choice["finish_reason"]:
        raise BadResponse("no finish_reason")
    return str(choice["message"]["content"])


def _whole_completion(answer: Any) -> str:
    [choice] = answer["choices"]
    if not choice["finish_reason"]:
        raise BadResponse("no finish_reason")
    return str(choice["text"])


def _whole_response(answer: Any) -> str:
    if answer["status"] not in {"completed", "incomplete"}:
        raise BadResponse(f"status {answer['status']}")
    messages = [item for item in answer["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def _whole_message(answer: Any) -> str:
    if not answer["stop_reason"]:
        raise BadResponse("no stop_reason")
    return "".join(block.get("text", "") for block in answer["content"])


def _whole_vectors(answer: Any) -> str:
    """Return the number of vectors; their values round differently in other batches."""
    if "data" in answer:
        vectors = [entry["embedding"] for entry in answer["data"]]
    else:
        vectors = answer["embeddings"] if "embeddings" in answer else [answer["embedding"]]
    return " ".join(str(len(vector)) for vector in vectors)


def _no_text(_: Any) -> str:
    return ""


_WHOLE = {
    Dialect.OLLAMA: _whole_ollama,
    Dialect.OPENAI: _whole_openai,
    Dialect.COMPLETIONS: _whole_completion,
    Dialect.RESPONSES: _whole_response,
    Dialect.ANTHROPIC: _whole_message,
    Dialect.VECTORS: _whole_vectors,
    Dialect.OBJECT: _no_text,
}
