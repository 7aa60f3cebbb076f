"""Test embedding requests with a fake scheduler and an engine that counts letters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from specd import core, errors
from specd.generation import Generation
from specd.generation.embedding import MAX_IN_FLIGHT
from specd.settings import Settings
from tests.fakes.in_process_engine import FakeEngine, FakeServices

MODEL = core.LocalModel(
    name="minilm:latest",
    full_name="registry.ollama.ai/library/minilm:latest",
    digest="0" * 64,
    weights=Path("/m/minilm.gguf"),
    parameters={"num_ctx": 256},
    capabilities=("embedding",),
)


class LetterCounter(FakeEngine):
    """An engine that embeds a text as its length; the text "hang" hangs, and "long" is too long."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.contexts: list[int | None] = []
        self.n_under_way = self.n_most = 0
        self.dies = 0
        self.n_buried = 0
        self.hangs = asyncio.Event()

    async def ended(self) -> None:
        self.n_buried += 1

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        self.asked.append((text, truncate))
        self.contexts.append(n_ctx)
        self.n_under_way += 1
        self.n_most = max(self.n_most, self.n_under_way)
        try:
            if text == "hang":
                self.hangs.set()
                await asyncio.Event().wait()
            # The result comes after other tasks have run.
            await asyncio.get_running_loop().run_in_executor(None, len, text)
            if self.dies:
                self.dies -= 1
                raise errors.EngineCrashed("gone")
            if text == "long" and not truncate:
                raise errors.ContextLengthExceeded(300, 256)
            return core.Embedding(vector=(float(len(text)),), n_tokens=len(text))
        finally:
            self.n_under_way -= 1


class EmbeddingServices(FakeServices):
    """A `Generation` with one model and one engine."""

    engine: LetterCounter

    def __init__(self, model: core.ModelRef = MODEL) -> None:
        memory = core.ModelMemory(device="CPU", total_bytes=1, vram_bytes=0)
        facts = core.EngineFacts(n_ctx=256, n_ctx_train=512, n_vocab=9, target=memory)
        super().__init__(model, LetterCounter(), facts)
        ticks = iter(range(1000))
        self.generation = Generation(self, self, self, Settings(), clock=lambda: next(ticks))

    async def embed(self, *texts: str, truncate: bool = True, **fields: object) -> core.Embeddings:
        request = core.EmbedRequest(model=self.model, texts=texts, truncate=truncate)
        return await self.generation.embed(replace(request, **fields))  # type: ignore[arg-type]


async def test_vectors_come_in_order_with_the_time_until_the_lease() -> None:
    services = EmbeddingServices()
    found = await services.embed("abc", "", "a", options={"num_ctx": 64}, keep_alive_s=7.0)
    assert [entry.vector for entry in found.entries] == [(3.0,), (0.0,), (1.0,)]
    assert found.load_ns == 1_000_000_000
    [(spec, keep_alive_s)] = services.leased
    assert (spec.embeds, spec.n_ctx, keep_alive_s) == (True, 64, 7.0)
    assert services.engine.contexts == [64, 64, 64]  # although a longer context may be loaded
    assert services.n_released == 1


@pytest.mark.contract("embed.truncate", "embed.nothing-left")
@pytest.mark.parametrize("asked", [3, 1, 0, -7])
async def test_a_text_is_cut_to_the_requested_context_although_the_load_has_a_minimum(
    asked: int,
) -> None:
    services = EmbeddingServices()
    await services.embed("abc", options={"num_ctx": asked})
    [(spec, _)] = services.leased
    assert spec.n_ctx in {0, 4}
    assert services.engine.contexts == [asked]


async def test_a_text_gets_the_whole_context_by_default() -> None:
    services = EmbeddingServices(replace(MODEL, parameters={}))
    await services.embed("abc")
    assert services.engine.contexts == [None]


@pytest.mark.contract("sched.parallel")
async def test_an_embedder_has_one_slot_and_no_drafter() -> None:
    services = EmbeddingServices()
    await services.embed("a")
    [(spec, _)] = services.leased
    assert (spec.n_slots, spec.drafter, spec.n_ctx) == (1, None, 256)
    assert spec.no_pair_reason == "embedding_model"
    assert "loaded to give vectors" in spec.no_pair_detail


async def test_texts_are_embedded_concurrently_up_to_a_limit() -> None:
    services = EmbeddingServices()
    texts = [str(n) for n in range(3 * MAX_IN_FLIGHT)]
    found = await services.embed(*texts)
    assert [entry.n_tokens for entry in found.entries] == [len(text) for text in texts]
    assert services.engine.n_most == MAX_IN_FLIGHT
    assert len(services.leased) == 1


@pytest.mark.contract("embed.truncate-off")
async def test_a_text_too_long_is_an_error_without_truncate() -> None:
    services = EmbeddingServices()
    with pytest.raises(
        errors.InvalidRequest, match=r"^the input length exceeds the context length$"
    ):
        await services.embed("long", "hang", truncate=False)
    assert services.engine.n_under_way == 0
    assert services.n_released == 1
    assert len((await services.embed("long")).entries) == 1


async def test_after_a_crash_the_request_is_repeated_once_the_engine_has_ended() -> None:
    services = EmbeddingServices()
    services.engine.dies = 1
    assert (await services.embed("a")).entries[0].vector == (1.0,)
    assert (services.n_reloads, services.engine.n_buried) == (1, 1)


async def test_a_text_that_crashes_the_engine_twice_is_not_tried_again() -> None:
    services = EmbeddingServices()
    services.engine.dies = 5
    with pytest.raises(errors.EngineCrashed):
        await services.embed("a")
    assert services.n_reloads == services.n_released == 1


async def test_a_cancelled_request_cancels_all_its_texts() -> None:
    services = EmbeddingServices()
    asking = asyncio.ensure_future(services.embed("hang", "hang"))
    await services.engine.hangs.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert services.engine.n_under_way == 0
    assert services.n_released == 1


@pytest.mark.contract("embed.not-embedder")
async def test_a_chat_model_gives_no_vectors() -> None:
    services = EmbeddingServices(replace(MODEL, capabilities=("completion",)))
    with pytest.raises(errors.EmbeddingsUnsupported, match="Start it with `--embeddings`"):
        await services.embed("a")
    assert services.leased == []


async def test_a_model_that_chats_and_embeds_is_loaded_for_the_requested_use() -> None:
    services = EmbeddingServices(replace(MODEL, capabilities=("completion", "embedding")))
    await services.embed("a")
    await services.generation.load(core.LoadRequest(model=services.model))
    assert [spec.embeds for spec, _ in services.leased] == [True, False]


async def test_an_embedder_is_loaded_for_vectors() -> None:
    services = EmbeddingServices()
    await services.generation.load(core.LoadRequest(model=services.model))
    [(spec, _)] = services.leased
    assert spec.embeds
