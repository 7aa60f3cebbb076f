"""Writes response objects and their streams, in which items open and close in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from specd import core
from specd.api.go_format import omit_empty
from specd.api.openai.chat import Json, arguments_text, specd_fields
from specd.api.openai.reply import Writer
from specd.api.openai.responses.body import ResponsesBody, Tool
from specd.api.streaming import sse_event
from specd.errors import SpecdError
from specd.go_json_encoder import dump_json

_FUNCTION_KEYS: Final = ("type", "name", "description", "strict", "parameters")


@dataclass(slots=True)
class _Open:
    """The open item, to which text is added."""

    kind: str
    id: str
    text: str = ""


@dataclass(slots=True)
class ResponseWriter(Writer):
    """Writes one answer.  number: part of every id.  now: returns Unix seconds.

    A stream's last event has the same object as an answer without a stream.
    """

    body: ResponsesBody
    number: int
    now: Callable[[], int]
    _created: int = field(init=False)
    _n_events: int = 0
    _items: list[Json] = field(default_factory=list)
    _open: _Open | None = None

    def __post_init__(self) -> None:
        self._created = self.now()

    def whole(self, whole: core.Delta, done: core.Done) -> Json:
        for _ in (*self._add_delta(whole), *self._end()):
            pass  # only the items count, not the events
        return self._completed(done)

    def pieces(self, delta: core.Delta) -> bytes:
        return b"".join((*self._begin(), *self._add_delta(delta)))

    def last(self, done: core.Done) -> bytes:
        before = b"".join((*self._begin(), *self._end()))
        return before + self._event("response.completed", response=self._completed(done))

    def failed(self, error: SpecdError) -> bytes:
        error_object = {"code": "server_error", "message": str(error)}
        response = self._response("failed", self._items) | {"error": error_object}
        return self._event("response.failed", response=response)

    # ------------------------------------------------------------------ items

    def _begin(self) -> Iterator[bytes]:
        if self._n_events == 0:
            for name in ("created", "in_progress"):
                response = self._response("in_progress", [])
                yield self._event(f"response.{name}", response=response)

    def _add_delta(self, delta: core.Delta) -> Iterator[bytes]:
        if delta.thinking:
            yield from self._add_reasoning(delta.thinking)
        if delta.content:
            yield from self._add_text(delta.content)
        for call in delta.tool_calls:
            yield from self._call(call)

    def _end(self) -> Iterator[bytes]:
        """Close the open item; add an empty message to an answer without message or call."""
        yield from self._close()
        if all(item["type"] == "reasoning" for item in self._items):
            yield from self._add_text("")
            yield from self._close()

    def _add_reasoning(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open.kind != "reasoning":
            yield from self._close()
            item = self._open = _Open("reasoning", self._id("rs"))
            added: Json = {"id": item.id, "type": "reasoning", "summary": []}
            yield self._item_event("response.output_item.added", item=added)
            # OpenAI's JavaScript client adds deltas to the part that this event announces.
            part = _summary_text("")
            yield self._part_event("response.reasoning_summary_part.added", part=part)
        self._open.text += text
        yield self._part_event("response.reasoning_summary_text.delta", delta=text)

    def _add_text(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open.kind != "message":
            yield from self._close()
            item = self._open = _Open("message", self._id("msg"))
            added = _message(item.id, "in_progress", [])
            yield self._item_event("response.output_item.added", item=added)
            yield self._part_event("response.content_part.added", part=_output_text(""))
        self._open.text += text
        if text:
            yield self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def _call(self, call: core.ToolCall) -> Iterator[bytes]:
        yield from self._close()
        item_id, arguments = self._id("fc"), arguments_text(call)
        added = _function_call(item_id, "in_progress", call, "")
        done = _function_call(item_id, "completed", call, arguments)
        name = "response.function_call_arguments"
        yield self._item_event("response.output_item.added", item=added)
        yield self._item_event(f"{name}.delta", item_id=item_id, delta=arguments)
        yield self._item_event(f"{name}.done", item_id=item_id, name=call.name, arguments=arguments)
        yield self._item_event("response.output_item.done", item=done)
        self._items.append(done)

    def _close(self) -> Iterator[bytes]:
        item = self._open
        if item is None:
            return
        if item.kind == "reasoning":
            part = _summary_text(item.text)
            yield self._part_event("response.reasoning_summary_text.done", text=item.text)
            yield self._part_event("response.reasoning_summary_part.done", part=part)
            closed = _reasoning(item)
        else:
            part = _output_text(item.text)
            yield self._part_event("response.output_text.done", text=item.text, logprobs=[])
            yield self._part_event("response.content_part.done", part=part)
            closed = _message(item.id, "completed", [part])
        yield self._item_event("response.output_item.done", item=closed)
        self._open = None
        self._items.append(closed)

    # ------------------------------------------------------------------ events

    def _part_event(self, kind: str, **fields: object) -> bytes:
        """Return an event about the part of the open item."""
        assert self._open is not None
        place = "summary_index" if self._open.kind == "reasoning" else "content_index"
        return self._item_event(kind, item_id=self._open.id, **{place: 0}, **fields)

    def _item_event(self, kind: str, **fields: object) -> bytes:
        return self._event(kind, output_index=len(self._items), **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._n_events} | fields
        self._n_events += 1
        return sse_event(dump_json(data), event=kind)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self.number}_{len(self._items)}"

    # ------------------------------------------------------------------ the response object

    def _completed(self, done: core.Done) -> Json:
        """Return the final object; its status is `completed` even at the limit, as in Ollama."""
        final = {"completed_at": self.now(), "usage": usage(done.usage)}
        return self._response("completed", self._items) | final | specd_fields(done)

    def _response(self, status: str, output: list[Json]) -> Json:
        body = self.body
        return {
            "id": f"resp_{self.number}",
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "incomplete_details": None,
            "model": body.model,
            "previous_response_id": None,
            "instructions": body.instructions or None,
            "output": list(output),
            "error": None,
            "tools": [_tool(tool) for tool in body.tools],
            "tool_choice": "none" if body.tool_choice == "none" else "auto",
            "truncation": body.truncation,
            "parallel_tool_calls": True,
            "text": {"format": dict(body.format) or {"type": "text"}},
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "top_logprobs": 0,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "reasoning": _requested_reasoning(body.reasoning),
            "usage": None,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "store": False,
            "background": body.background,
            "service_tier": "default",
            "metadata": {},
            "safety_identifier": None,
            "prompt_cache_key": None,
        }


def usage(counts: core.Usage) -> Json:
    """Return the counts; how many of the tokens are reasoning is unknown."""
    return {
        "input_tokens": counts.n_prompt,
        "output_tokens": counts.n_generated,
        "total_tokens": counts.n_prompt + counts.n_generated,
        "input_tokens_details": {"cached_tokens": counts.n_cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


def _tool(tool: Tool) -> Json:
    """Return the tool as it was sent, and all keys of a function."""
    missing = dict.fromkeys(_FUNCTION_KEYS) if tool.type == "function" else {}
    return missing | dict(tool.sent)


def _requested_reasoning(requested: Mapping[str, str]) -> Json | None:
    if not omit_empty(**requested):
        return None
    return {"effort": requested.get("effort") or None, "summary": requested.get("summary") or None}


def _message(item_id: str, status: str, content: list[Json]) -> Json:
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _summary_text(text: str) -> Json:
    return {"type": "summary_text", "text": text}


def _reasoning(item: _Open) -> Json:
    """Return a reasoning item; clients send `encrypted_content`, the thinking, back."""
    return {
        "id": item.id,
        "type": "reasoning",
        "summary": [_summary_text(item.text)],
        "encrypted_content": item.text,
    }


def _function_call(item_id: str, status: str, call: core.ToolCall, arguments: str) -> Json:
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
    }
