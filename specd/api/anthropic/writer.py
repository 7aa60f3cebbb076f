"""Writes Anthropic's message objects and stream events; the order of keys is Ollama's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specd import core
from specd.api.answer_objects import speculation_object
from specd.api.streaming import sse_event
from specd.go_json_encoder import dump_json

Json = dict[str, object]


def new_message_id() -> str:
    return f"msg_{secrets.token_hex(12)}"


def message(message_id: str, model: str, whole: core.Delta, done: core.Done) -> Json:
    """Return the object of an answer without a stream; `content` is never null, unlike Ollama's."""
    content: list[Json] = []
    if whole.thinking:
        content.append(_thinking(whole.thinking))
    if whole.content:
        content.append({"type": "text", "text": whole.content})
    content.extend(_tool_use(call, call.arguments) for call in whole.tool_calls)
    reason = _stop_reason(done, called=bool(whole.tool_calls))
    usage = _usage(done.usage.n_prompt, done.usage.n_generated)
    return _message(message_id, model, content, reason, usage) | _specd_fields(done)


@dataclass(slots=True)
class EventWriter:
    """Writes the events of one stream; blocks open and close one after the other.

    n_estimated: an estimate of the prompt's tokens, for the first event.
    """

    message_id: str
    model: str
    n_estimated: int
    _started: bool = False
    _open: str = ""
    _index: int = -1
    _called: bool = False

    def pieces(self, delta: core.Delta) -> Iterator[bytes]:
        yield from self._start()
        if delta.thinking:
            yield from self._open_block("thinking", _thinking(""))
            yield self._delta("thinking_delta", thinking=delta.thinking)
        if delta.content:
            yield from self._open_block("text", {"type": "text", "text": ""})
            yield self._delta("text_delta", text=delta.content)
        for call in delta.tool_calls:
            self._called = True
            yield from self._open_block("tool_use", _tool_use(call, {}))
            arguments = dump_json(dict(call.arguments)).decode()
            yield self._delta("input_json_delta", partial_json=arguments)
            yield from self._close()

    def last(self, done: core.Done) -> Iterator[bytes]:
        yield from self._start()
        yield from self._close()
        reason = _stop_reason(done, called=self._called)
        yield _event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": None},
            usage=_usage(done.usage.n_prompt, done.usage.n_generated),
            **_specd_fields(done),
        )
        yield _event("message_stop")

    def _start(self) -> Iterator[bytes]:
        if not self._started:
            self._started = True
            usage = _usage(self.n_estimated, 0)
            empty = _message(self.message_id, self.model, [], None, usage)
            yield _event("message_start", message=empty)

    def _open_block(self, kind: str, block: Json) -> Iterator[bytes]:
        """Open a block, unless one of this kind is open."""
        if self._open != kind:
            yield from self._close()
            self._open = kind
            self._index += 1
            yield _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, **fields: str) -> bytes:
        delta = {"type": kind, **fields}
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield _event("content_block_stop", index=self._index)


def _event(kind: str, **fields: object) -> bytes:
    return sse_event(dump_json({"type": kind, **fields}), event=kind)


def _message(
    message_id: str, model: str, content: list[Json], stop_reason: str | None, usage: Json
) -> Json:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _thinking(text: str) -> Json:
    """Return a thinking block; clients expect a signature and send it back, so it is empty."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_use(call: core.ToolCall, arguments: Mapping[str, object]) -> Json:
    return {
        "type": "tool_use",
        "id": call.id or f"toolu_{secrets.token_hex(12)}",
        "name": call.name,
        "input": dict(arguments),
    }


def _stop_reason(done: core.Done, *, called: bool) -> str:
    if called:
        return "tool_use"
    return "max_tokens" if done.reason is core.StopReason.LENGTH else "end_turn"


def _usage(n_input: int, n_output: int) -> Json:
    return {"input_tokens": n_input, "output_tokens": n_output}


def _specd_fields(done: core.Done) -> Json:
    """Return specd's own fields; Anthropic's clients ignore unknown keys."""
    return {"specd": {"speculation": speculation_object(done.speculation)}}
