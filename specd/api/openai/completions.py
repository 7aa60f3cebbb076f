"""`POST /v1/completions`, OpenAI's older form of `/api/generate`; key order is Ollama's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from aiohttp import web

from specd import core, options
from specd.api import lookup
from specd.api.body import Body, Mismatch, go_any_type, json_type, number, read, string
from specd.api.go_format import omit_empty
from specd.api.openai.chat import END, Json, logprobs, specd_fields, usage
from specd.api.openai.chat_body import stream_options
from specd.api.openai.reply import AnswerRoute, Writer
from specd.api.streaming import sse_event
from specd.errors import InvalidRequest
from specd.go_json_encoder import dump_json


class CompletionsRoute(AnswerRoute):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, CompletionBody)
        request_options = to_options(body)
        lookup.check_top_logprobs(body.n_logprobs)
        ref = await lookup.find_model(self._library, body.model)
        _check(body, ref)
        core_request = core.GenerateRequest(
            model=ref,
            prompt=core.TextPrompt(text=body.prompt, suffix=body.suffix),
            options=request_options,
            n_logprobs=body.n_logprobs or None,
        )
        return await self._reply(request, core_request, self._writer(body), streamed=body.stream)

    def _writer(self, body: CompletionBody) -> TextWriter:
        return TextWriter(
            id=f"cmpl-{self._draw_id()}",
            created=self._unix_s(),
            model=body.model,
            include_usage=bool(body.stream_options.get("include_usage")),
        )


def _check(body: CompletionBody, ref: core.ModelRef) -> None:
    if "image" in ref.capabilities:
        raise InvalidRequest("image generation models are not currently supported")
    lookup.require_completion(ref, body.model, "generate")
    if body.suffix:
        lookup.require_capability(ref, "insert")


def to_options(body: CompletionBody) -> core.OptionValues:
    """Return the options; temperature and top_p are 1 by default, and the penalties 0.

    Raises InvalidRequest for a stop text that is not a string.
    """
    return options.parse(
        {
            "num_predict": body.max_tokens,
            "seed": body.seed,
            "stop": _stops(body.stop),
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "top_p": body.top_p or 1.0,
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
        }
    )


def _stops(stop: object) -> list[str] | None:
    if isinstance(stop, str):
        return [stop]
    if not isinstance(stop, list):
        return None
    for entry in stop:
        if not isinstance(entry, str):
            raise InvalidRequest(f"invalid type for 'stop' field: {go_any_type(entry)}")
    return stop


# --------------------------------------------------------------------------- body


def _prompt(value: object) -> str:
    """Return a string, or the only string of a list, which many clients send."""
    match value:
        case [str() as only]:
            return only
        case _:
            return string(value)


def _float32(value: object) -> float:
    try:
        return number(value)
    except Mismatch as wrong:
        raise Mismatch(json_type(value), "float32") from wrong


_Float32 = Annotated[float, _float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBody(Body):
    """logprobs: how many of the likeliest tokens to show; 0 means none, as in Ollama."""

    go_name = "openai.CompletionRequest"

    model: str = ""
    prompt: Annotated[str, _prompt] = ""
    frequency_penalty: _Float32 = 0.0
    max_tokens: int | None = None
    presence_penalty: _Float32 = 0.0
    seed: int | None = None
    stop: object = None
    stream: bool = False
    stream_options: Annotated[Mapping[str, Any], stream_options] = field(default_factory=dict)
    temperature: Annotated[float | None, _float32] = None
    top_p: _Float32 = 0.0
    suffix: str = ""
    logprobs: int = 0

    @property
    def n_logprobs(self) -> int:
        return max(self.logprobs, 0)


# --------------------------------------------------------------------------- answers

_ZERO_USAGE: Final[Json] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@dataclass(frozen=True, slots=True)
class TextWriter(Writer):
    """Writes one answer.  id, created (Unix seconds): the same in all chunks."""

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
    """Return the form of chats, as in Ollama, and in addition the older form's lists."""
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
