"""Vectors asked of one engine process, with the fake engine in the child's place."""

from __future__ import annotations

import asyncio

import pytest

from specd import core, errors
from specd.runner import State
from tests.runner.processes import answer_of, running


async def test_each_text_gets_its_own_vector() -> None:
    async with running() as process:
        await process.ready()
        texts = [n * "a" for n in range(1, 30)]
        found = await asyncio.gather(*(process.embed(text, truncate=True) for text in texts))
        assert found == [core.Embedding(vector=(float(len(text)),), n_tokens=1) for text in texts]


@pytest.mark.parametrize(
    "kind, error",
    [
        (core.FailureKind.INVALID, errors.InvalidRequest),
        (core.FailureKind.CONTEXT_LENGTH, errors.ContextLengthExceeded),
        (core.FailureKind.ENGINE, errors.EngineError),
    ],
)
async def test_a_failure_is_raised_and_the_engine_goes_on(
    kind: core.FailureKind, error: type[errors.SpecdError]
) -> None:
    async with running() as process:
        await process.ready()
        with pytest.raises(error):
            await process.embed(kind, truncate=True)
        assert (await process.embed("two words", truncate=True)).n_tokens == 2


async def test_a_dead_engine_fails_every_vector_under_way_and_all_later_ones() -> None:
    async with running() as process:
        await process.ready()
        hanging = asyncio.ensure_future(process.embed("hang", truncate=True))
        with pytest.raises(errors.EngineCrashed, match="SIGKILL"):
            await process.embed("crash", truncate=True)
        with pytest.raises(errors.EngineCrashed):
            await hanging
        assert await process.ended() is State.CRASHED
        with pytest.raises(errors.EngineCrashed):
            await process.embed("late", truncate=True)


async def test_a_stop_ends_a_vector_under_way_with_shutdown() -> None:
    async with running() as process:
        await process.ready()
        hanging = asyncio.ensure_future(process.embed("hang", truncate=True))
        await process.tokenize("it is there by now", add_bos=False)
        process.stop()
        with pytest.raises(errors.ShuttingDown):
            await hanging


async def test_whoever_stops_waiting_cancels_the_vector_in_the_engine() -> None:
    async with running() as process:
        await process.ready()
        hanging = asyncio.ensure_future(process.embed("hang", truncate=True))
        await process.tokenize("it is there by now", add_bos=False)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert len(await process.tokenize("cancelled?", add_bos=False)) == 1


async def test_a_vector_that_came_is_not_cancelled() -> None:
    async with running() as process:
        await process.ready()
        await process.embed("a", truncate=True)
        assert await process.tokenize("cancelled?", add_bos=False) == []


async def test_a_text_beyond_any_frame_is_the_requests_own_fault() -> None:
    async with running() as process:
        await process.ready()
        with pytest.raises(errors.InvalidRequest):
            await process.embed("x" * (65 * 1024 * 1024), truncate=True)
        assert isinstance((await answer_of(process, "a"))[-1], core.Done)
