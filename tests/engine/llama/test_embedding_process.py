"""A real engine process with an embedding model, used through the daemon's client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from specd import core, errors
from specd.runner import Process
from tests.engine.llama.conftest import request
from tests.gguf_embedders import write_bert
from tests.gguf_files import write_llama

pytestmark = pytest.mark.native


@contextlib.asynccontextmanager
async def running(weights: Path, *, embeds: bool) -> AsyncIterator[Process]:
    process = Process(core.EngineSpec(weights=str(weights), embeds=embeds, n_ctx=64, n_threads=1))
    try:
        await process.ready()
        yield process
    finally:
        process.stop()
        await process.ended()


async def test_parallel_texts_have_the_vectors_of_single_ones(tmp_path: Path) -> None:
    texts = ["", "a", "hello", *(n * "x " for n in range(20)), "long " * 100]
    async with running(write_bert(tmp_path / "bert.gguf"), embeds=True) as process:
        alone = [await process.client.embed(text, truncate=True) for text in texts]
        together = await asyncio.gather(
            *(process.client.embed(text, truncate=True) for text in texts)
        )
        for one, other in zip(alone, together, strict=True):
            assert one.n_tokens == other.n_tokens <= 64
            np.testing.assert_allclose(one.vector, other.vector, atol=5e-3)
        assert len(await process.client.tokenize("ab", add_bos=True)) == 4
        with pytest.raises(errors.ContextLengthExceeded):
            await process.client.embed(texts[-1], truncate=False)
        assert (await process.client.embed(texts[-1], truncate=True, n_ctx=16)).n_tokens == 16
        with pytest.raises(errors.ContextLengthExceeded):
            await process.client.embed(texts[-1][:40], truncate=False, n_ctx=16)


async def test_an_engine_refuses_the_other_kind_of_request(tmp_path: Path) -> None:
    async with running(write_bert(tmp_path / "bert.gguf"), embeds=True) as process:
        [failed] = [event async for event in process.client.generate(request("hello"))]
        assert isinstance(failed, core.Failed)
        assert failed.message == "this engine gives vectors"
    async with running(write_llama(tmp_path / "llama.gguf"), embeds=False) as process:
        with pytest.raises(errors.InvalidRequest, match="this engine gives text"):
            await process.client.embed("a", truncate=True)
