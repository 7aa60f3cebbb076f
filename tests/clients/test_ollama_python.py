"""The `ollama` Python package against the running daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import ollama
import pytest

from tests.daemon_process import Daemon

pytestmark = pytest.mark.native

OPTIONS: dict[str, Any] = {"num_predict": 24, "seed": 7, "temperature": 0.8}
TURN = [{"role": "user", "content": "Write a function add."}]


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(daemon.url) as client:
        yield client


async def test_list_and_show_return_the_models_and_their_details(
    client: ollama.AsyncClient,
) -> None:
    names = {model.model for model in (await client.list()).models}
    assert names == {"specd-demo:latest", "endless:latest"}
    shown = await client.show("specd-demo")
    assert shown.details is not None
    assert shown.details.family == "llama"
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion"]


async def test_a_streamed_generate_equals_the_whole_one(client: ollama.AsyncClient) -> None:
    whole = await client.generate("specd-demo", "def add(", options=OPTIONS)
    assert whole.done
    assert whole.eval_count
    streamed = [
        part
        async for part in await client.generate(
            "specd-demo", "def add(", options=OPTIONS, stream=True
        )
    ]
    assert "".join(part.response or "" for part in streamed) == whole.response
    assert [part.done for part in streamed].count(True) == 1
    assert streamed[-1].done_reason in {"stop", "length"}
    assert streamed[-1].prompt_eval_count == whole.prompt_eval_count


async def test_a_streamed_chat_equals_the_whole_one(client: ollama.AsyncClient) -> None:
    whole = await client.chat("specd-demo", TURN, options=OPTIONS)
    assert whole.message.role == "assistant"
    assert whole.message.content
    streamed = [
        part async for part in await client.chat("specd-demo", TURN, options=OPTIONS, stream=True)
    ]
    assert "".join(part.message.content or "" for part in streamed) == whole.message.content
    assert streamed[-1].done


async def test_ps_lists_the_model_its_drafter_and_their_memory(
    client: ollama.AsyncClient, daemon: Daemon
) -> None:
    assert (await client.ps()).models == []
    await client.generate("specd-demo", "x", options={"num_predict": 1})
    [model] = (await client.ps()).models
    assert model.name == "specd-demo:latest"
    assert model.size is not None
    assert model.size_vram == 0
    async with daemon.http.get("/api/ps") as response:
        [entry] = (await response.json())["models"]
    drafter = entry["specd"]["drafter"]
    assert 0 < drafter["size"] < entry["size"] == model.size
    assert drafter["pair_source"] == "manifest"
    await client.generate("specd-demo", keep_alive=0)
    assert (await client.ps()).models == []


async def test_a_seed_gives_the_same_answer_with_and_without_speculation(
    client: ollama.AsyncClient,
) -> None:
    for seed in range(4):
        options = {"num_predict": 48, "seed": seed}
        plain = await client.generate(
            "specd-demo", "class Node:\n", options={**options, "draft_num_predict": 0}
        )
        drafted = await client.generate("specd-demo", "class Node:\n", options=options)
        assert drafted.response == plain.response


async def test_an_unknown_model_raises_the_clients_error(
    client: ollama.AsyncClient,
) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'absent' not found") as caught:
        await client.generate("absent", "x")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="model 'absent:latest' not found"):
        await client.show("absent")
