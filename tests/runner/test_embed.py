"""Embeddings from one engine process; a fake engine runs in the child process."""

from __future__ import annotations

import asyncio

import pytest

from specd import core, errors
from specd.runner import State
from tests.runner.processes import answer_of, running


async def test_each_text_gets_its_own_embedding() -> None:
    async with running() as process:
        await process.ready()
        texts = [n * "a" for n in range(1, 30)]
        found = await asyncio.gather(*(process.client.embed(text, truncate=True) for text in texts))
        assert found == [core.Embedding(vector=(float(len(text)),), n_tokens=1) for text in texts]


@pytest.mark.parametrize(
    "kind, error",
    [
        (core.FailureKind.INVALID, errors.InvalidRequest),
        (core.FailureKind.CONTEXT_LENGTH, errors.ContextLengthExceeded),
        (core.FailureKind.ENGINE, errors.EngineError),
    ],
)
async def test_a_failure_is_raised_and_the_engine_continues(
    kind: core.FailureKind, error: type[errors.SpecdError]
) -> None:
    async with running() as process:
        await process.ready()
        with pytest.raises(error):
            await process.client.embed(kind, truncate=True)
        assert (await process.client.embed("two words", truncate=True)).n_tokens == 2


async def test_a_dead_engine_fails_all_running_and_later_embeddings() -> None:
    async with running() as process:
        await process.ready()
        hanging = asyncio.ensure_future(process.client.embed("hang", truncate=True))
        with pytest.raises(errors.EngineCrashed, match="SIGKILL"):
            await process.client.embed("crash", truncate=True)
        with pytest.raises(errors.EngineCrashed):
            await hanging
        assert await process.ended() is State.CRASHED
        with pytest.raises(errors.EngineCrashed):
            await process.client.embed("late", truncate=True)


async def test_a_stop_ends_a_running_embedding_with_a_shutdown_error() -> None:
    async with running() as process:
        await process.ready()
        hanging = asyncio.ensure_future(process.client.embed("hang", truncate=True))
        await process.client.tokenize("it is there by now", add_bos=False)
        process.stop()
        with pytest.raises(errors.ShuttingDown):
            await hanging


async def test_a_cancelled_request_cancels_its_embedding_in_the_engine() -> None:
    async with running() as process:
        await process.ready()
        hanging = asyncio.ensure_future(process.client.embed("hang", truncate=True))
        await process.client.tokenize("it is there by now", add_bos=False)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert len(await process.client.tokenize("cancelled?", add_bos=False)) == 1


async def test_a_completed_embedding_is_not_cancelled() -> None:
    async with running() as process:
        await process.ready()
        await process.client.embed("a", truncate=True)
        assert await process.client.tokenize("cancelled?", add_bos=False) == []


async def test_a_text_larger_than_a_frame_is_an_invalid_request() -> None:
    async with running() as process:
        await process.ready()
        with pytest.raises(errors.InvalidRequest):
            await process.client.embed("x" * (65 * 1024 * 1024), truncate=True)
        assert isinstance((await answer_of(process, "a"))[-1], core.Done)
