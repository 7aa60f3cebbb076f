"""Test prompts of one kind of character, which llama.cpp's tokenizer reads by recursion.

They overflowed the engine's stack, and the crash ended all other answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from gguf import PoolingType

from tests.daemon_process import Daemon, running
from tests.gguf_files import OllamaStore, Shape, byte_vocabulary, write_llama

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

#: One length overflowed the usual stack of 8 MiB; the other overflows even 256 MiB.
LONG, TOO_LONG = "a" * 30_000, "a" * 900_000
OPTIONS = {"num_predict": 2, "num_ctx": 256, "seed": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    tmp_path = tmp_path_factory.mktemp("runs")
    store = OllamaStore(tmp_path / "models")
    vocabulary, shape = byte_vocabulary(pre="tekken"), Shape(n_ctx=4096)
    store.add("m", weights=write_llama(tmp_path / "m.gguf", vocabulary=vocabulary, shape=shape))
    pooled = {"llama.pooling_type": int(PoolingType.LAST)}
    store.add("e", weights=write_llama(tmp_path / "e.gguf", vocabulary=vocabulary, extra=pooled))
    async with running(tmp_path, OLLAMA_NUM_PARALLEL="2") as started:
        yield started


def asks(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the path and body of a request to every route that tokenizes text."""
    said = [{"role": "user", "content": text}]
    chat = {"model": "m", "messages": said, "max_tokens": 2}
    return [
        ("/api/generate", {"model": "m", "prompt": text, "options": OPTIONS}),
        ("/api/generate", {"model": "m", "prompt": text, "raw": True, "options": OPTIONS}),
        ("/api/generate", {"model": "m", "prompt": "b", "system": text, "options": OPTIONS}),
        ("/api/chat", {"model": "m", "messages": said, "options": OPTIONS}),
        ("/v1/completions", {"model": "m", "prompt": text, "max_tokens": 2}),
        ("/v1/chat/completions", chat),
        ("/v1/responses", {"model": "m", "input": text, "max_output_tokens": 2}),
        ("/v1/messages", chat),
        ("/v1/messages/count_tokens", {"model": "m", "messages": said}),
        ("/api/embed", {"model": "e", "input": text}),
        ("/v1/embeddings", {"model": "e", "input": [text]}),
    ]


async def post(daemon: Daemon, path: str, body: dict[str, Any]) -> tuple[int, str]:
    async with daemon.http.post(path, json={"stream": False, **body}) as reply:
        return reply.status, await reply.text()


@pytest.mark.parametrize("path, body", asks(LONG))
async def test_a_long_run_is_read(daemon: Daemon, path: str, body: dict[str, Any]) -> None:
    status, text = await post(daemon, path, body)
    # A text longer than the context may be refused.
    assert status == 200 or "context" in text, text


async def test_a_run_that_overflows_any_stack_fails_only_its_own_answer(daemon: Daemon) -> None:
    other = {"model": "m", "prompt": "b", "options": OPTIONS | {"num_predict": 300}, "raw": True}
    async with daemon.http.post("/api/generate", json=other) as stream:
        await stream.content.readline()
        engines = {engine.pid for engine in daemon.engines()}
        for path, body in asks(TOO_LONG):
            status, text = await post(daemon, path, body)
            assert status == 400, text
            assert "characters without whitespace: this model's tokenizer reads at most" in text
        last = json.loads((await stream.content.read()).splitlines()[-1])
    assert last["done"]
    assert engines <= {engine.pid for engine in daemon.engines()}


async def test_long_runs_of_several_clients_are_read_at_once(daemon: Daemon) -> None:
    text = "a" * 200_000
    body = {"model": "m", "prompt": text, "options": OPTIONS}
    replies = [post(daemon, "/api/generate", body) for _ in range(4)]
    assert {status for status, _ in await asyncio.gather(*replies)} == {200}
