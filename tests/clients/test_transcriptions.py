"""OpenAI's clients transcribe audio: the daemon, a real engine, a tiny audio model."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.clients.environments import (
    OPENAI_NODE_VERSION,
    PROGRAMS,
    node_environment,
    run_program,
)
from tests.daemon_process import Daemon, running
from tests.gguf_files import OllamaStore, Shape, write_llama
from tests.gguf_projectors import sound, write_llava, write_ultravox

pytestmark = [
    pytest.mark.native,
    pytest.mark.contract("openai.transcriptions"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    tmp_path = tmp_path_factory.mktemp("transcriptions")
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "text.gguf", shape=Shape(n_ctx=4096))
    # The model does not end an answer by itself.
    params = {"num_predict": 24}
    store.add("ear", weights=weights, projector=write_ultravox(tmp_path / "a.gguf"), params=params)
    store.add("eye", weights=weights, projector=write_llava(tmp_path / "v.gguf"), params=params)
    store.add("deaf", weights=weights)
    async with running(tmp_path) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def client(daemon: Daemon) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{daemon.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


async def heard(client: openai.AsyncOpenAI, seed: int, **fields: Any) -> str:
    file = ("a.wav", sound(seed))
    answer = await client.audio.transcriptions.create(model="ear", file=file, **fields)
    return str(answer.text)


async def test_the_answer_has_the_spoken_words(client: openai.AsyncOpenAI) -> None:
    one = await heard(client, 1)
    assert one
    assert await heard(client, 1) == one
    assert await heard(client, 2) != one
    assert await heard(client, 1, language="fr") != one
    assert await heard(client, 1, prompt="Names: Ada") != one


@pytest.mark.contract("openai.transcriptions-more")
async def test_all_formats_and_a_stream_give_the_same_text(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "ear", "file": ("a.wav", sound(1))}
    one = await heard(client, 1)
    assert await client.audio.transcriptions.create(**asked, response_format="text") == one
    verbose = await client.audio.transcriptions.create(**asked, response_format="verbose_json")
    assert verbose.text == one
    events = [
        event async for event in await client.audio.transcriptions.create(**asked, stream=True)
    ]
    assert "".join(e.delta for e in events if e.type == "transcript.text.delta") == one
    assert events[-1].text == one


@pytest.mark.contract("openai.transcriptions-refused")
async def test_invalid_audio_is_refused(daemon: Daemon, client: openai.AsyncOpenAI) -> None:
    async def refused(match: str, file: bytes = sound(), model: str = "ear") -> None:
        with pytest.raises(openai.BadRequestError, match=match):
            await client.audio.transcriptions.create(model=model, file=("a.wav", file))

    await refused("does not support multimodal requests", model="deaf")
    engines = daemon.engines()
    await refused("eye:latest does not support audio", model="eye")
    assert daemon.engines() == engines
    await refused("audio file is empty", file=b"")
    await refused("not WAV, MP3 or FLAC", file=b"\x1aE\xdf\xa3webm")
    await refused("a sound cannot be read", file=b"RIFF\0\0\0\0WAVEnothing")
    await refused("too short", file=sound(seconds=0.01))
    with pytest.raises(openai.NotFoundError, match="model 'absent' not found"):
        await client.audio.transcriptions.create(model="absent", file=("a.wav", sound()))
    assert await heard(client, 1)


@pytest.mark.contract("clients.openai-js")
@pytest.mark.timeout(600)  # the first one waits for the environment to be made
async def test_the_javascript_client_transcribes(
    daemon: Daemon, client: openai.AsyncOpenAI, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = await asyncio.to_thread(node_environment, OPENAI_NODE_VERSION)
    if folder is None:
        pytest.skip(f"no npm or no Node.js {OPENAI_NODE_VERSION} on this machine")
    program = str(shutil.copy(PROGRAMS / "openai_transcriptions.mjs", folder))
    home = tmp_path_factory.mktemp("home")
    report = await run_program("node", program, daemon.url, home=home, given=sound(1))
    assert report["whole"] == await heard(client, 1, language="en")
    assert report["streamed"] == "".join(report["deltas"]) == report["whole"]
    assert report["error"][1] == "BadRequestError"
    assert "does not support multimodal requests" in report["error"][2]
