"""A client that leaves frees its slot at once, whatever it was waiting for."""

from __future__ import annotations

import asyncio

import pytest

from specd import core
from tests.api.fakes import DONE, FakeGeneration, client

PATHS = pytest.mark.parametrize(
    "path, body",
    [
        ("/api/generate", {"model": "plain", "prompt": "x"}),
        ("/api/chat", {"model": "plain", "messages": [{}]}),
        ("/v1/chat/completions", {"model": "plain", "messages": [{"content": "x"}]}),
    ],
)


@PATHS
async def test_a_client_that_leaves_in_mid_stream_closes_the_generator(
    path: str, body: dict[str, object]
) -> None:
    waits = asyncio.Event()
    generation = FakeGeneration([core.Delta(content="a"), waits, DONE])
    async with client(generation) as http:
        async with http.post(path, json=body | {"stream": True}) as reply:
            assert await reply.content.readany()
            await waits.wait()
            reply.close()
        await generation.closed.wait()


@PATHS
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_byte_closes_the_generator(
    path: str, body: dict[str, object], stream: bool
) -> None:
    waits = asyncio.Event()
    generation = FakeGeneration([waits, DONE])
    async with client(generation) as http:
        task = asyncio.create_task(http.post(path, json=body | {"stream": stream}))
        await waits.wait()
        task.cancel()
        await generation.closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_each_piece_arrives_when_it_was_made() -> None:
    waits = asyncio.Event()
    generation = FakeGeneration([core.Delta(content="a"), waits, DONE])
    body = {"model": "plain", "prompt": "x"}
    async with client(generation) as http, http.post("/api/generate", json=body) as reply:
        line = await reply.content.readline()
        assert b'"response":"a"' in line
        reply.close()
    assert waits.is_set()
