"""OpenAI's chat completions and their chunks, as Ollama writes them; key order is Ollama's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from specd import core
from specd.api.go_format import dump_json, omit_empty
from specd.api.logprobs import logprob_entries
from specd.api.openai.errors import error_event
from specd.api.speculation import speculation_object, timings_object
from specd.api.streaming import sse_event
from specd.errors import SpecdError

Json = dict[str, object]
END = sse_event(b"[DONE]")


@dataclass(slots=True)
class ChatWriter:
    """One answer.  id, created (Unix seconds): the same in all chunks.

    Only the first chunk names the role; the one with the reason to stop has an empty delta.
    """

    id: str
    created: int
    model: str
    include_usage: bool
    _started: bool = False
    _called: bool = False

    def whole(self, whole: core.Delta, done: core.Done) -> Json:
        message: Json = {"role": "assistant", "content": whole.content}
        extra = omit_empty(reasoning=whole.thinking, tool_calls=tool_calls(whole.tool_calls))
        choice: Json = {
            "index": 0,
            "message": message | extra,
            "finish_reason": "tool_calls" if whole.tool_calls else done.reason.value,
        }
        return (
            self._top("chat.completion")
            | {"choices": [choice | logprobs(whole)], "usage": usage(done.usage)}
            | specd_fields(done)
        )

    def pieces(self, delta: core.Delta) -> bytes:
        """Thinking and content that came together are two chunks; log probabilities ride last."""
        parts: list[Json] = []
        if delta.thinking:
            parts.append({"content": "", "reasoning": delta.thinking})
        if delta.content or delta.tool_calls or not parts:
            self._called |= bool(delta.tool_calls)
            calls = omit_empty(tool_calls=tool_calls(delta.tool_calls))
            parts.append({"content": delta.content} | calls)
        *before, last = parts
        chunks = [self._chunk(part, {}) for part in before]
        return b"".join((*chunks, self._chunk(last, logprobs(delta))))

    def last(self, done: core.Done) -> bytes:
        reason = "tool_calls" if self._called else done.reason.value
        choice: Json = {"index": 0, "delta": {}, "finish_reason": reason}
        opening = b"" if self._started else self._chunk({"content": ""}, {})
        finish = self._event([choice], specd_fields(done))
        counts = self._event([], {"usage": usage(done.usage)}) if self.include_usage else b""
        return opening + finish + counts + END

    def failed(self, error: SpecdError) -> bytes:
        return error_event(error)

    def _chunk(self, delta: Json, extra: Json) -> bytes:
        role: Json = {} if self._started else {"role": "assistant"}
        self._started = True
        choice: Json = {"index": 0, "delta": role | delta, "finish_reason": None}
        return self._event([choice | extra], {})

    def _event(self, choices: list[Json], extra: Json) -> bytes:
        top = self._top("chat.completion.chunk")
        return sse_event(dump_json(top | {"choices": choices} | extra))

    def _top(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "fp_ollama",
        }


def tool_calls(calls: Sequence[core.ToolCall]) -> list[Json]:
    return [
        {
            "id": call.id,
            "index": call.index,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for call in calls
    ]


def arguments_text(call: core.ToolCall) -> str:
    """JSON in a string, its keys in the model's order."""
    return json.dumps(dict(call.arguments), ensure_ascii=False, separators=(",", ":"))


def usage(counts: core.Usage) -> Json:
    return {
        "prompt_tokens": counts.n_prompt,
        "completion_tokens": counts.n_generated,
        "total_tokens": counts.n_prompt + counts.n_generated,
        "prompt_tokens_details": {"cached_tokens": counts.n_cached},
    }


def logprobs(delta: core.Delta) -> Json:
    """`top_logprobs` is there even where it is empty: strict clients want it."""
    entries = logprob_entries(delta.logprobs)
    for entry in entries:
        entry.setdefault("top_logprobs", [])
    return {"logprobs": {"content": entries}} if entries else {}


def specd_fields(done: core.Done) -> Json:
    """What specd adds; OpenAI's clients ignore keys that they do not know."""
    return {
        "timings": timings_object(done.usage, done.speculation),
        "specd": {"speculation": speculation_object(done.speculation)},
    }
