"""OpenAI's completion objects and chunks, as Ollama writes them; key order is Ollama's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specd import core
from specd.api.logprobs import logprob_entries
from specd.api.speculation import speculation_object, timings_object
from specd.api.wire import present

Json = dict[str, object]


def completion(head: Json, model: str, whole: core.Delta, done: core.Done) -> Json:
    """The object of an answer that is not streamed."""
    message: Json = {"role": "assistant", "content": whole.content}
    choice: Json = {
        "index": 0,
        "message": message | present(reasoning=whole.thinking),
        "finish_reason": done.reason.value,
    }
    return (
        _top(head, "chat.completion", model)
        | {"choices": [choice | _logprobs(whole)], "usage": usage(done.usage)}
        | _ours(done)
    )


@dataclass(slots=True)
class ChunkWriter:
    """Chunks of one stream.  head: the id and the one pinned time.

    Only the first chunk names the role; the one with the reason to stop has an empty delta.
    """

    head: Json
    model: str
    include_usage: bool
    _started: bool = False

    def pieces(self, delta: core.Delta) -> Iterator[Json]:
        """Thinking and content that came together are two chunks; log probabilities ride last."""
        parts: list[Json] = []
        if delta.thinking:
            parts.append({"content": "", "reasoning": delta.thinking})
        if delta.content or not parts:
            parts.append({"content": delta.content})
        for part in parts[:-1]:
            yield self._chunk(part, {})
        yield self._chunk(parts[-1], _logprobs(delta))

    def last(self, done: core.Done) -> Iterator[Json]:
        if not self._started:
            yield self._chunk({"content": ""}, {})
        choice: Json = {"index": 0, "delta": {}, "finish_reason": done.reason.value}
        yield self._with_choices([choice]) | _ours(done)
        if self.include_usage:
            yield self._with_choices([]) | {"usage": usage(done.usage)}

    def _chunk(self, delta: Json, extra: Json) -> Json:
        role: Json = {} if self._started else {"role": "assistant"}
        self._started = True
        choice: Json = {"index": 0, "delta": role | delta, "finish_reason": None}
        return self._with_choices([choice | extra])

    def _with_choices(self, choices: list[Json]) -> Json:
        return _top(self.head, "chat.completion.chunk", self.model) | {"choices": choices}


def usage(counts: core.Usage) -> Json:
    return {
        "prompt_tokens": counts.n_prompt,
        "completion_tokens": counts.n_generated,
        "total_tokens": counts.n_prompt + counts.n_generated,
    }


def _top(head: Json, kind: str, model: str) -> Json:
    return {
        "id": head["id"],
        "object": kind,
        "created": head["created"],
        "model": model,
        "system_fingerprint": "fp_ollama",
    }


def _logprobs(delta: core.Delta) -> Json:
    entries = logprob_entries(delta.logprobs)
    return {"logprobs": {"content": entries}} if entries else {}


def _ours(done: core.Done) -> Json:
    """What specd adds; OpenAI's clients ignore keys that they do not know."""
    return {
        "timings": timings_object(done.usage, done.speculation),
        "specd": {"speculation": speculation_object(done.speculation)},
    }
