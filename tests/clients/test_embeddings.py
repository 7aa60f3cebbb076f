"""Embeddings for the `ollama` and `openai` packages from the running daemon, and their errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import ollama
import openai
import pytest
from gguf import PoolingType

from tests.daemon_process import FAKE_ENGINE, Daemon, ended, running
from tests.gguf_embedders import SHAPE, write_bert, write_decoder
from tests.gguf_files import OllamaStore, write_llama

pytestmark = pytest.mark.native

TEXTS = ["hello there", "", "the quick brown fox", "a " * 200]


def fill_store(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("bert", weights=write_bert(tmp_path / "bert.gguf"))
    last = write_decoder(tmp_path / "decoder.gguf", pooling=PoolingType.LAST)
    store.add("decoder", weights=last)
    store.add("rerank", weights=write_bert(tmp_path / "r.gguf", pooling=PoolingType.RANK))
    store.add("spoiled", weights=write_bert(tmp_path / "spoiled.gguf", spoiled=True))
    store.add("chat", weights=write_llama(tmp_path / "chat.gguf"))


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    fill_store(tmp_path)
    async with running(tmp_path) as daemon:
        yield daemon


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(daemon.url) as client:
        yield client


@pytest.mark.contract("embed.normalised", "embed.dimensions", "embed.old", "embed.truncate")
@pytest.mark.parametrize("model", ["bert", "decoder"])
async def test_ollamas_client_gets_an_embedding_for_each_text(
    client: ollama.AsyncClient, model: str
) -> None:
    found = await client.embed(model, TEXTS)
    assert found.model == model
    assert found.prompt_eval_count is not None
    # The last one is cut to the context.
    assert SHAPE.n_ctx < found.prompt_eval_count < 2 * SHAPE.n_ctx
    assert found.total_duration is not None
    assert found.load_duration is not None
    assert 0 < found.load_duration < found.total_duration
    np.testing.assert_allclose(np.linalg.norm(found.embeddings, axis=1), 1, atol=1e-6)
    for text, vector in zip(TEXTS, found.embeddings, strict=True):
        alone = await client.embed(model, text or [text])
        np.testing.assert_allclose(alone.embeddings, [vector], atol=2e-3)
    cut = await client.embed(model, TEXTS[0], dimensions=8)
    head = np.array(found.embeddings[0][:8])
    np.testing.assert_allclose(cut.embeddings[0], head / np.linalg.norm(head), atol=2e-3)
    old = await client.embeddings(model, TEXTS[0])
    np.testing.assert_allclose(old.embedding, found.embeddings[0], atol=2e-3)


async def test_openais_client_gets_the_same_embeddings(
    client: ollama.AsyncClient, daemon: Daemon
) -> None:
    known = await client.embed("bert", TEXTS)
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none") as other:
        # This client requests base64 by default.
        packed = await other.embeddings.create(model="bert", input=TEXTS)
        floats = await other.embeddings.create(
            model="bert", input=TEXTS[0], encoding_format="float", dimensions=4
        )
    np.testing.assert_allclose([e.embedding for e in packed.data], known.embeddings, atol=2e-3)
    assert packed.usage.prompt_tokens == known.prompt_eval_count
    assert len(floats.data[0].embedding) == 4
    assert math.isclose(math.hypot(*floats.data[0].embedding), 1, abs_tol=1e-6)


async def test_many_concurrent_requests_are_all_answered(client: ollama.AsyncClient) -> None:
    texts = [f"text {n} {'word ' * (n % 30)}" for n in range(60)]
    known = (await client.embed("bert", texts)).embeddings
    found = await asyncio.gather(*(client.embed("bert", text) for text in texts))
    np.testing.assert_allclose([e.embeddings[0] for e in found], known, atol=2e-3)


@pytest.mark.contract("embed.load")
async def test_an_embedding_model_is_loaded_listed_and_unloaded(client: ollama.AsyncClient) -> None:
    assert (await client.embed("decoder", "", keep_alive="10m")).embeddings == []
    [model] = (await client.ps()).models
    assert (model.name, model.context_length) == ("decoder:latest", SHAPE.n_ctx)
    assert (await client.embed("decoder", "", keep_alive=0)).embeddings == []
    assert (await client.ps()).models == []
    await client.embed("decoder", "a", keep_alive=0)
    assert (await client.ps()).models == []


async def test_a_model_without_embeddings_gets_a_clear_error(client: ollama.AsyncClient) -> None:
    for model, status, words in (
        ("chat", 501, "This server does not support embeddings"),
        ("rerank", 500, "it is a reranker"),
        ("absent", 404, 'model "absent" not found, try pulling it first'),
    ):
        with pytest.raises(ollama.ResponseError, match=words) as caught:
            await client.embed(model, "a")
        assert caught.value.status_code == status
    with pytest.raises(ollama.ResponseError, match='"bert" does not support generate'):
        await client.generate("bert", "a")


@pytest.mark.contract("embed.nan")
async def test_an_embedding_with_nan_is_an_error(client: ollama.AsyncClient) -> None:
    with pytest.raises(ollama.ResponseError, match="embedding contains NaN or Inf") as caught:
        await client.embed("spoiled", "a")
    assert caught.value.status_code == 400


@pytest.mark.contract("embed.truncate", "embed.truncate-off")
async def test_a_text_is_truncated_to_the_context(
    client: ollama.AsyncClient,
) -> None:
    alone = await client.embed("bert", "a")
    assert alone.prompt_eval_count == 3  # with the two special tokens
    found = await client.embed("bert", "a b c d e f", options={"num_ctx": 3})
    assert found.prompt_eval_count == 3
    np.testing.assert_allclose(found.embeddings, alone.embeddings, atol=1e-6)
    with pytest.raises(ollama.ResponseError, match="the input length exceeds the context length"):
        await client.embed("bert", "a b c d e f", truncate=False, options={"num_ctx": 3})


@pytest.mark.contract("embed.nothing-left")
@pytest.mark.parametrize("num_ctx", [2, 1, 0])
async def test_a_context_too_small_for_one_token_is_refused(
    client: ollama.AsyncClient, num_ctx: int
) -> None:
    words = "input after truncation exceeds maximum context length"
    with pytest.raises(ollama.ResponseError, match=words) as caught:
        await client.embed("bert", "a b c d e f", options={"num_ctx": num_ctx})
    assert caught.value.status_code == 400


async def test_a_killed_engine_is_replaced_and_the_client_sees_no_error(
    client: ollama.AsyncClient, daemon: Daemon
) -> None:
    before = await client.embed("bert", "a")
    for engine in daemon.engines():
        engine.kill()
    after = await client.embed("bert", "a")
    np.testing.assert_allclose(after.embeddings, before.embeddings, atol=1e-6)


async def test_a_text_that_kills_the_engine_fails_only_its_own_request(tmp_path: Path) -> None:
    fill_store(tmp_path)
    async with (
        running(tmp_path, engine=FAKE_ENGINE) as daemon,
        ollama.AsyncClient(daemon.url) as client,
    ):
        with pytest.raises(ollama.ResponseError, match="model runner has unexpectedly stopped"):
            await client.embed("bert", ["fine", "crash"])
        assert (await client.embed("bert", "fine")).embeddings == [[1.0]]


async def test_a_client_that_disconnects_frees_the_engine(tmp_path: Path) -> None:
    fill_store(tmp_path)
    async with (
        running(tmp_path, engine=FAKE_ENGINE) as daemon,
        ollama.AsyncClient(daemon.url) as client,
    ):
        await client.embed("bert", "")
        engines = daemon.engines()
        assert engines
        hanging = asyncio.ensure_future(client.embed("bert", "hang"))
        await client.embed("bert", "by now the other is there")
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        await client.embed("bert", "", keep_alive=0)
        assert await ended(engines)


async def test_embedding_models_are_recognized_by_their_files(client: ollama.AsyncClient) -> None:
    for model, capability in (
        ("bert", "embedding"),
        ("decoder", "embedding"),
        ("chat", "completion"),
    ):
        assert (await client.show(model)).capabilities == [capability]
