"""`POST /v1/audio/transcriptions`: a chat about a sound, for models that read sounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from specd import core
from specd.api import lookup
from specd.api.error_handling import json_reply
from specd.api.form import read_form
from specd.api.openai.chat import Json, specd_fields
from specd.api.openai.reply import AnswerRoute, Writer
from specd.api.streaming import collect_answer, sse_event
from specd.errors import InvalidRequest
from specd.go_json_encoder import dump_json

_FIELDS: Final = (
    *("file", "model", "language", "prompt"),
    *("response_format", "temperature", "stream"),
)
_BOOLEANS: Final = {"": False, "false": False, "0": False, "true": True, "1": True}
#: Without it, a model would answer a question in the sound.
_INSTRUCTION: Final = (
    "Write down what is spoken in the audio, word for word. Reply with the spoken words alone."
    " If they ask a question, do not answer it."
)
_QUESTION: Final = "Which words are spoken in this audio?"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionForm:
    """The form.  language: a name or a code.  prompt: a description of the sound."""

    sound: bytes
    model: str
    language: str
    prompt: str
    response_format: str
    temperature: float
    stream: bool


class TranscriptionRoute(AnswerRoute):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        form = await read_transcription(request)
        ref = await lookup.find_model(self._library, form.model)
        lookup.require_completion(ref, form.model, "chat")
        lookup.require_sounds(ref)
        if not core.is_audio(form.sound):
            raise InvalidRequest("the audio file cannot be read: it is not WAV, MP3 or FLAC")
        core_request, writer = to_request(form, ref), TranscriptionWriter()
        if form.stream:
            return await self._reply(request, core_request, writer, streamed=True)
        answer = await collect_answer(self._generation.generate(core_request))
        if form.response_format == "text":
            return web.Response(text=answer.whole.content.strip())
        return json_reply(writer.whole(answer.whole, answer.done))


async def read_transcription(request: web.Request) -> TranscriptionForm:
    """Read the form, and fields in the URL's query, as in Ollama.

    Raises InvalidRequest, in Ollama's order and with its texts.
    """
    form = await read_form(request, _FIELDS)
    sent = form.fields | dict(request.query)
    if not sent.get("model"):
        raise InvalidRequest("model is required")
    if "file" not in form.files:
        raise InvalidRequest("file is required: http: no such file")
    if not form.files["file"]:
        raise InvalidRequest("audio file is empty")
    return TranscriptionForm(
        sound=form.files["file"],
        model=sent["model"],
        language=sent.get("language", ""),
        prompt=sent.get("prompt", ""),
        response_format=sent.get("response_format", ""),
        temperature=_temperature(sent.get("temperature", "")),
        stream=_boolean("stream", sent.get("stream", "")),
    )


def to_request(form: TranscriptionForm, ref: core.ModelRef) -> core.GenerateRequest:
    system = _INSTRUCTION
    if form.language:
        system += f" The audio is in {form.language}."
    if form.prompt:
        system += f" Context: {form.prompt}"
    messages = (
        core.Message(role="system", content=system),
        core.Message(role="user", content=_QUESTION, images=(form.sound,)),
    )
    return core.GenerateRequest(
        model=ref,
        prompt=core.ChatPrompt(messages=messages),
        options=core.OptionValues(temperature=form.temperature),
    )


def _temperature(sent: str) -> float:
    try:
        value = float(sent or 0)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InvalidRequest("temperature must be a number, 0 or more")
    return value


def _boolean(name: str, sent: str) -> bool:
    if sent.lower() not in _BOOLEANS:
        raise InvalidRequest(f"{name} must be true or false")
    return _BOOLEANS[sent.lower()]


# --------------------------------------------------------------------------- answers


@dataclass(slots=True)
class TranscriptionWriter(Writer):
    """Writes one transcription, without the white space around it and without thinking.

    The formats with times (`verbose_json`, `srt`, `vtt`) are JSON with the text, as in Ollama.
    """

    _text: str = ""
    _pending_text: str = ""  # white space that may be the last

    def whole(self, whole: core.Delta, done: core.Done) -> Json:
        return {"text": whole.content.strip(), "usage": _usage(done.usage)} | specd_fields(done)

    def pieces(self, delta: core.Delta) -> bytes:
        held = self._pending_text + delta.content
        if not self._text:
            held = held.lstrip()
        new = held.rstrip()
        self._pending_text = held[len(new) :]
        self._text += new
        return _event("transcript.text.delta", delta=new)

    def last(self, done: core.Done) -> bytes:
        final = {"text": self._text, "usage": _usage(done.usage)} | specd_fields(done)
        return _event("transcript.text.done", **final)


def _event(kind: str, **fields: object) -> bytes:
    return sse_event(dump_json({"type": kind} | fields))


def _usage(counts: core.Usage) -> Json:
    return {
        "type": "tokens",
        "input_tokens": counts.n_prompt,
        "output_tokens": counts.n_generated,
        "total_tokens": counts.n_prompt + counts.n_generated,
    }
