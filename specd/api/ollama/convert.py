"""Converts Ollama's inference bodies to the types of `core` and back; key order is Ollama's."""

from __future__ import annotations

import json
from dataclasses import dataclass

from specd import core, options
from specd.api.answer_objects import logprob_entries, speculation_object
from specd.api.go_format import debug_info, go_quote, omit_empty, utc_time
from specd.api.ollama.schema import ChatBody, GenerateBody, InferenceBody, InvalidFormat
from specd.go_json_encoder import dump_json

Json = dict[str, object]


def generate_request(body: GenerateBody, ref: core.ModelRef) -> core.GenerateRequest:
    prompt = core.TextPrompt(
        text=body.prompt,
        suffix=body.suffix,
        system=body.system or None,
        template=body.template or None,
        raw=body.raw,
        images=tuple(body.images),
        context=tuple(body.context),
    )
    return _request(body, ref, prompt, want_context=not body.raw)


def chat_request(body: ChatBody, ref: core.ModelRef) -> core.GenerateRequest:
    prompt = core.ChatPrompt(messages=tuple(body.messages), tools=tuple(body.tools))
    return _request(body, ref, prompt, want_context=False)


def _request(
    body: InferenceBody,
    ref: core.ModelRef,
    prompt: core.ChatPrompt | core.TextPrompt,
    *,
    want_context: bool,
) -> core.GenerateRequest:
    return core.GenerateRequest(
        model=ref,
        prompt=prompt,
        options=options.parse(body.options),
        keep_alive_s=body.keep_alive,
        think=body.think,
        truncate=body.truncate,
        shift=body.shift,
        n_logprobs=body.top_logprobs if body.logprobs else None,
        want_context=want_context,
        grammar=_grammar(body.format),
    )


def _grammar(sent: object) -> core.Grammar | None:
    """Return the grammar of a `format`; None allows any text.  Raises InvalidFormat."""
    if sent in (None, ""):
        return None
    if sent == "json":
        return core.Grammar(kind=core.GrammarKind.JSON)
    if isinstance(sent, dict):
        schema = json.dumps(sent, ensure_ascii=False)
        return core.Grammar(kind=core.GrammarKind.JSON_SCHEMA, text=schema)
    shown = go_quote(dump_json(sent).decode())
    raise InvalidFormat(f'invalid format: {shown}; expected "json" or a valid JSON Schema object')


@dataclass(frozen=True, slots=True)
class Writer:
    """Builds the objects of answers.  model: the name as the client sent it."""

    model: str

    def piece(self, delta: core.Delta, now_ns: int) -> Json:
        head = self._head(delta, now_ns, done=False)
        return head | omit_empty(logprobs=logprob_entries(delta.logprobs))

    def last(self, done: core.Done, now_ns: int, total_ns: int, delta: core.Delta) -> Json:
        """Return the last object.

        delta: what is not sent yet: nothing in a stream, else the whole answer.
        """
        return (
            self._head(delta, now_ns, done=True)
            | {"done_reason": done.reason.value}
            | self._results(done, total_ns, omit_empty(logprobs=logprob_entries(delta.logprobs)))
            | {"speculation": speculation_object(done.speculation)}
        )

    def idle(self, reason: str, now_ns: int) -> Json:
        """Return the answer to a request that only loads or unloads."""
        return self._head(core.Delta(), now_ns, done=True) | {"done_reason": reason}

    def rendered(self, prompt: str, n_images: int, now_ns: int) -> Json:
        """Return the answer to `_debug_render_only`."""
        head = self._head(core.Delta(), now_ns, done=False)
        return head | {"_debug_info": debug_info(prompt, n_images)}

    def _head(self, delta: core.Delta, now_ns: int, *, done: bool) -> Json:
        raise NotImplementedError

    def _results(self, done: core.Done, total_ns: int, logprobs: Json) -> Json:
        raise NotImplementedError


class GenerateWriter(Writer):
    """Builds the objects of `/api/generate`."""

    def _head(self, delta: core.Delta, now_ns: int, *, done: bool) -> Json:
        return (
            {"model": self.model, "created_at": utc_time(now_ns), "response": delta.content}
            | omit_empty(thinking=delta.thinking)
            | {"done": done}
        )

    def _results(self, done: core.Done, total_ns: int, logprobs: Json) -> Json:
        return omit_empty(context=list(done.context)) | _metrics(done, total_ns) | logprobs


class ChatWriter(Writer):
    """Builds the objects of `/api/chat`."""

    def rendered(self, prompt: str, n_images: int, now_ns: int) -> Json:
        answer = super().rendered(prompt, n_images, now_ns)
        return answer | {"message": {"role": "", "content": ""}}

    def _head(self, delta: core.Delta, now_ns: int, *, done: bool) -> Json:
        message: Json = {"role": "assistant", "content": delta.content}
        calls = [_call(call) for call in delta.tool_calls]
        return {
            "model": self.model,
            "created_at": utc_time(now_ns),
            "message": message | omit_empty(thinking=delta.thinking, tool_calls=calls),
            "done": done,
        }

    def _results(self, done: core.Done, total_ns: int, logprobs: Json) -> Json:
        return logprobs | _metrics(done, total_ns)


def _call(call: core.ToolCall) -> Json:
    function: Json = {
        "index": call.index,
        "name": call.name,
        "arguments": dict(call.arguments),
    }
    return omit_empty(id=call.id) | {"function": function}


def _metrics(done: core.Done, total_ns: int) -> Json:
    """Return durations in nanoseconds and counts, without those that are 0."""
    return omit_empty(
        total_duration=total_ns,
        load_duration=done.load_ns,
        prompt_eval_count=done.usage.n_prompt,
        prompt_eval_duration=done.usage.prompt_ns,
        eval_count=done.usage.n_generated,
        eval_duration=done.usage.generate_ns,
    )
