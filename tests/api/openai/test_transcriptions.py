"""`/v1/audio/transcriptions`: the fields of its form, their chat, and the answers."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from specd import core, errors
from tests.api.fakes import DONE, MODELS, FakeGeneration, Script, client, model_ref

PATH = "/v1/audio/transcriptions"
SOUND = b"RIFF\0\0\0\0WAVEfmt "
SPOKEN: Script = [
    core.Delta(thinking="hm"),
    core.Delta(content=" Good\n"),
    core.Delta(content="day "),
    DONE,
]


async def ask(
    generation: FakeGeneration, sound: bytes | None = SOUND, **fields: str
) -> tuple[int, str, str]:
    """Return the answer's status, content type and text."""
    models = (*MODELS, model_ref("seer", "completion", "vision"))
    form = aiohttp.FormData(default_to_multipart=True)
    for name, value in ({"model": "able"} | fields).items():
        form.add_field(name, value)
    if sound is not None:
        form.add_field("file", sound, filename="a.wav")
    async with client(generation, models=models) as http, http.post(PATH, data=form) as reply:
        return reply.status, reply.headers["Content-Type"], await reply.text()


async def asked(**fields: str) -> core.GenerateRequest:
    generation = FakeGeneration()
    status, _, text = await ask(generation, SOUND, **fields)
    assert status == 200, text
    return generation.requests[0]


@pytest.mark.contract("openai.transcriptions")
async def test_a_sound_becomes_a_chat_with_temperature_0() -> None:
    request = await asked()
    assert isinstance(request.prompt, core.ChatPrompt)
    system, user = request.prompt.messages
    assert (system.role, user.role, user.images) == ("system", "user", (SOUND,))
    assert "word for word" in system.content
    assert (request.model.name, request.think) == ("able:latest", None)
    assert request.options == {"temperature": 0}


@pytest.mark.contract("openai.transcriptions")
async def test_the_prompt_has_the_language_and_the_context() -> None:
    prompt = (await asked(language="en", prompt="A lecture on Gödel")).prompt
    assert isinstance(prompt, core.ChatPrompt)
    told = prompt.messages[0].content
    assert told.endswith(" The audio is in en. Context: A lecture on Gödel")


@pytest.mark.contract("openai.transcriptions-more")
async def test_a_temperature_is_honoured() -> None:
    assert (await asked(temperature="0.5")).options == {"temperature": 0.5}
    assert (await asked(temperature="")).options == {"temperature": 0}


@pytest.mark.contract("openai.transcriptions")
@pytest.mark.parametrize("response_format", ["", "json", "verbose_json", "srt", "unheard-of"])
async def test_an_answer_is_json_without_white_space_around_it(response_format: str) -> None:
    status, kind, text = await ask(FakeGeneration(SPOKEN), response_format=response_format)
    assert (status, kind) == (200, "application/json; charset=utf-8")
    answer = json.loads(text)
    assert answer["text"] == "Good\nday"
    assert answer["usage"] == {
        "type": "tokens",
        "input_tokens": 5,
        "output_tokens": 7,
        "total_tokens": 12,
    }
    assert answer["specd"]["speculation"]["drafter"] == "tiny:latest"


@pytest.mark.contract("openai.transcriptions")
async def test_an_answer_as_text() -> None:
    answer = await ask(FakeGeneration(SPOKEN), response_format="text")
    assert answer == (200, "text/plain; charset=utf-8", "Good\nday")


@pytest.mark.contract("openai.transcriptions-more")
@pytest.mark.parametrize("response_format", ["", "text"])
async def test_a_stream_has_the_same_text(response_format: str) -> None:
    script: Script = [*SPOKEN[:-1], core.Delta(content=" to all\n"), DONE]
    fields = {"stream": "true", "response_format": response_format}
    status, kind, text = await ask(FakeGeneration(script), SOUND, **fields)
    assert (status, kind) == (200, "text/event-stream")
    *events, rest = text.split("\n\n")
    assert rest == ""
    *deltas, done = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [event["type"] for event in deltas] == ["transcript.text.delta"] * 4
    assert [event["delta"] for event in deltas] == ["", "Good", "\nday", "  to all"]
    assert (done["type"], done["text"]) == ("transcript.text.done", "Good\nday  to all")
    assert done["usage"]["total_tokens"] == 12


@pytest.mark.contract("openai.stream-error")
async def test_an_error_in_mid_stream_is_an_event() -> None:
    script: Script = [core.Delta(content="a"), errors.EngineCrashed("gone")]
    *_, last = (await ask(FakeGeneration(script), stream="true"))[2].strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "gone"


async def test_an_error_before_the_first_word_has_a_status() -> None:
    generation = FakeGeneration([errors.ContextLengthExceeded(9, 8)])
    for stream in ("true", "false"):
        assert (await ask(generation, stream=stream))[0] == 400


@pytest.mark.contract("openai.transcriptions-refused")
@pytest.mark.parametrize(
    "sound, fields, status, words",
    [
        (SOUND, {"model": ""}, 400, "model is required"),
        (None, {}, 400, "file is required: http: no such file"),
        (None, {"file": "RIFF"}, 400, "file is required: http: no such file"),
        (None, {"model": ""}, 400, "model is required"),
        (b"", {}, 400, "audio file is empty"),
        (SOUND, {"model": "absent"}, 404, "model 'absent' not found"),
        (SOUND, {"model": "embedder"}, 400, '"embedder" does not support chat'),
        (SOUND, {"model": "plain"}, 400, "does not support multimodal requests"),
        (SOUND, {"model": "seer"}, 400, "seer:latest does not support audio"),
        (b"OggS", {}, 400, "it is not WAV, MP3 or FLAC"),
        (SOUND, {"temperature": "hot"}, 400, "temperature must be a number, 0 or more"),
        (SOUND, {"temperature": "nan"}, 400, "temperature must be a number, 0 or more"),
        (SOUND, {"temperature": "-1"}, 400, "temperature must be a number, 0 or more"),
        (SOUND, {"stream": "perhaps"}, 400, "stream must be true or false"),
    ],
)
async def test_refusals(
    sound: bytes | None, fields: dict[str, str], status: int, words: str
) -> None:
    generation = FakeGeneration()
    got, kind, text = await ask(generation, sound, **fields)
    error: Any = json.loads(text)["error"]
    assert (got, kind) == (status, "application/json; charset=utf-8")
    assert words in error["message"]
    assert error["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert not generation.requests
