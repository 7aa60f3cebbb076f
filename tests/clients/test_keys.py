"""API keys (SPECD_API_KEYS), as each client sends them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
import pytest_asyncio

from tests.daemon_process import FAKE_ENGINE, ROOT, Daemon, running
from tests.gguf_files import OllamaStore, write_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY, OTHER = "sk-the-first-0123456789", "sk-the-second-0123456789"
TURN: Any = [{"role": "user", "content": "a b"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    """Yield a daemon whose model repeats the last message."""
    folder = tmp_path_factory.mktemp("keys")
    weights = write_llama(folder / "m.gguf", chat_template="{{ messages[-1].content }}")
    OllamaStore(folder / "models").add("m", weights=weights)
    async with running(folder, engine=FAKE_ENGINE, SPECD_API_KEYS=f"{KEY},{OTHER}") as daemon:
        yield daemon


@pytest.mark.parametrize("key", [KEY, OTHER])
async def test_openai_sends_its_key(daemon: Daemon, key: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key=key) as client:
        said = await client.chat.completions.create(model="m", messages=TURN)
        assert said.choices[0].message.content == "a b "


async def test_openai_gets_its_error_for_a_wrong_key(daemon: Daemon) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none") as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
    assert refused.value.code == "invalid_api_key"


@pytest.mark.parametrize("how", [{"api_key": KEY}, {"auth_token": OTHER}])
async def test_anthropic_sends_its_key(daemon: Daemon, how: dict[str, str]) -> None:
    async with anthropic.AsyncAnthropic(base_url=daemon.url, **how) as client:  # type: ignore[arg-type]
        said = await client.messages.create(model="m", max_tokens=9, messages=TURN)
        assert [getattr(block, "text", "") for block in said.content] == ["a b "]


async def test_anthropic_gets_its_error_for_a_wrong_key(daemon: Daemon) -> None:
    async with anthropic.AsyncAnthropic(base_url=daemon.url, api_key="none") as client:
        with pytest.raises(anthropic.AuthenticationError, match="valid API key"):
            await client.messages.create(model="m", max_tokens=9, messages=TURN)


@asynccontextmanager
async def ollama_client(daemon: Daemon, **fields: Any) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(daemon.url, **fields) as client:
        yield client


async def test_ollama_sends_its_key(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ollama_client(daemon, headers={"Authorization": f"Bearer {KEY}"}) as client:
        assert (await client.generate("m", "a b")).response == "a b "
    async with ollama_client(daemon) as stranger:
        with pytest.raises(ollama.ResponseError, match="valid API key") as refused:
            await stranger.list()
    assert refused.value.status_code == 401
    monkeypatch.setenv("OLLAMA_API_KEY", OTHER)
    async with ollama_client(daemon) as client:
        assert (await client.generate("m", "a b")).response == "a b "


async def specd(daemon: Daemon, home: Path, *words: str, keys: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", *words),
        cwd=ROOT,
        env=os.environ | {"OLLAMA_HOST": daemon.url, "SPECD_API_KEYS": keys, "HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_the_specd_command_sends_its_key(daemon: Daemon, tmp_path: Path) -> None:
    status, said = await specd(daemon, tmp_path, "list", keys=f"{OTHER},and-another-one-01234")
    assert (status, "m:latest" in said) == (0, True)
    assert (await specd(daemon, tmp_path, "run", "m", "a b", keys=KEY))[0] == 0
    for keys in ("", "wrong-key-0123456789"):
        status, said = await specd(daemon, tmp_path, "list", keys=keys)
        assert status == 1
        assert said == (
            "Error: unauthorized: a valid API key is required;"
            " set SPECD_API_KEYS to a key that the daemon accepts\n"
        )
