"""OpenAI's text completions, streamed or not, as Ollama writes them; key order is Ollama's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specd import core
from specd.api.go_format import dump_json, omit_empty
from specd.api.openai.chat_completion import END, logprobs, specd_fields, usage
from specd.api.openai.errors import error_event
from specd.api.streaming import sse_event
from specd.errors import SpecdError

Json = dict[str, object]

_ZERO_USAGE: Final[Json] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@dataclass(frozen=True, slots=True)
class TextWriter:
    """One answer.  id, created (Unix seconds): the same in all chunks."""

    id: str
    created: int
    model: str
    include_usage: bool

    def whole(self, whole: core.Delta, done: core.Done) -> Json:
        choice = _choice(whole, done.reason.value)
        return self._object([choice]) | {"usage": usage(done.usage)} | specd_fields(done)

    def pieces(self, delta: core.Delta) -> bytes:
        return self._event(_choice(delta, None), {})

    def last(self, done: core.Done) -> bytes:
        finish = self._event(_choice(core.Delta(), done.reason.value), specd_fields(done))
        if not self.include_usage:
            return finish + END
        return finish + sse_event(dump_json(self._object([]) | {"usage": usage(done.usage)})) + END

    def failed(self, error: SpecdError) -> bytes:
        return error_event(error)

    def _event(self, choice: Json, extra: Json) -> bytes:
        counts: Json = {"usage": _ZERO_USAGE} if self.include_usage else {}
        return sse_event(dump_json(self._object([choice]) | counts | extra))

    def _object(self, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "choices": choices,
            "model": self.model,
            "system_fingerprint": "fp_ollama",
        }


def _choice(delta: core.Delta, reason: str | None) -> Json:
    return (
        {"text": delta.content, "index": 0, "finish_reason": reason}
        | omit_empty(reasoning=delta.thinking)
        | _logprobs(delta)
    )


def _logprobs(delta: core.Delta) -> Json:
    """The shape of chats, as Ollama has it, with the older one's lists beside it."""
    if not delta.logprobs:
        return {}
    shown = logprobs(delta)["logprobs"]
    assert isinstance(shown, dict)
    entries = shown["content"]
    older = {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries
        ],
    }
    return {"logprobs": shown | older}
