"""`POST /v1/completions`: what `/api/generate` does, in OpenAI's older words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from specd import core
from specd.api import lookup
from specd.api.body import (
    Fields,
    Mismatch,
    anything,
    boolean,
    go_any_type,
    integer,
    json_type,
    number,
    read_fields,
    string,
    struct,
)
from specd.api.openai.reply import AnswerRoute
from specd.api.openai.text_completion import TextWriter
from specd.errors import InvalidRequest


class CompletionsRoute(AnswerRoute):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await read_completion(request)
        request_options = options(body)
        lookup.check_top_logprobs(body.n_logprobs)
        ref = await lookup.find_model(self._library, body.model)
        _check(body, ref)
        core_request = core.GenerateRequest(
            model=ref.name,
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


def options(body: CompletionBody) -> dict[str, object]:
    """Temperature and top_p are 1 and the penalties 0 where they were not sent.

    Raises InvalidRequest for a stop string that is none.
    """
    sent = {"num_predict": body.max_tokens, "seed": body.seed, "stop": _stops(body.stop)}
    return {
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": body.top_p or 1.0,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
    } | {key: value for key, value in sent.items() if value is not None}


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
    """A string.  A list of one is read too, which Ollama refuses and many clients send."""
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


COMPLETION: Final[Fields] = {
    "model": string,
    "prompt": _prompt,
    "frequency_penalty": _float32,
    "max_tokens": integer,
    "presence_penalty": _float32,
    "seed": integer,
    "stop": anything,
    "stream": boolean,
    "stream_options": struct({"include_usage": boolean}, "openai.StreamOptions"),
    "temperature": _float32,
    "top_p": _float32,
    "suffix": string,
    "logprobs": integer,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBody:
    """logprobs: how many of the likeliest tokens to show; 0 is off, as in Ollama."""

    model: str = ""
    prompt: str = ""
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: object = None
    stream: bool = False
    stream_options: Mapping[str, Any] = field(default_factory=dict)
    temperature: float | None = None
    top_p: float = 0.0
    suffix: str = ""
    logprobs: int = 0

    @property
    def n_logprobs(self) -> int:
        return max(self.logprobs, 0)


async def read_completion(request: web.Request) -> CompletionBody:
    return CompletionBody(**await read_fields(request, "openai.CompletionRequest", COMPLETION))
