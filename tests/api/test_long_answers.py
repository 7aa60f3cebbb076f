"""Long answers take memory until they are read: all of them together have a bound."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from specd.api.body_budget import (
    EXEMPT_ANSWER_BYTES,
    MAX_CONVERSIONS,
    MemoryBudget,
    NoRoom,
    make_answer_budget,
)
from specd.store import ModelInfo
from tests.api import fakes
from tests.api.fakes import FakeGeneration, FakeLibrary, client

MIB = 2**20
#: More than the kernel's buffers of a connection take.
N_LICENSE = 24 * MIB
N_ROOM = 32 * MIB
Http = TestClient[Any, Any]
BUSY = "server busy, please try again: too many long answers at once"


class Watched(MemoryBudget):
    """Signal the first reservation, and the release of all bytes."""

    def __init__(self) -> None:
        super().__init__(
            N_ROOM, exempt_bytes=EXEMPT_ANSWER_BYTES, error=lambda: NoRoom("too many long answers")
        )
        self.taken, self.whole = asyncio.Event(), asyncio.Event()

    def reserve(self, n_bytes: int) -> None:
        super().reserve(n_bytes)
        self.taken.set()

    def release(self, n_bytes: int) -> None:
        super().release(n_bytes)
        if self.free_bytes == N_ROOM and n_bytes:
            self.whole.set()


@pytest.fixture
def long_license(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(library: FakeLibrary, name: str, /, *, verbose: bool = False) -> ModelInfo:
        return replace(fakes.info(library.resolve(name).name), license="x" * N_LICENSE)

    monkeypatch.setattr(FakeLibrary, "show", show)


async def show(http: Http, *, verbose: bool) -> tuple[int, dict[str, Any]]:
    asked = {"model": "plain", "verbose": verbose}
    async with http.post("/api/show", json=asked) as reply:
        return reply.status, await reply.json()


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.usefixtures("long_license")
async def test_an_unread_answer_holds_memory_until_the_connection_ends(verbose: bool) -> None:
    answer_budget = Watched()
    async with client(answer_budget=answer_budget) as http:
        asked = b'{"model":"plain","verbose":%s}' % str(verbose).lower().encode()
        head = b"POST /api/show HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        _, idle = await asyncio.open_connection(http.host, http.port, limit=2**10)
        idle.write(head % len(asked) + asked)
        await answer_budget.taken.wait()
        assert await show(http, verbose=verbose) == (
            503,
            {"error": "server busy, please try again: too many long answers"},
        )
        async with http.get("/api/tags") as reply:
            assert reply.status == 200
        idle.transport.abort()
        await answer_budget.whole.wait()
        status, shown = await show(http, verbose=verbose)
        assert (status, len(shown["license"])) == (200, N_LICENSE)
        assert answer_budget.free_bytes == N_ROOM


@pytest.mark.usefixtures("long_license")
async def test_a_long_answer_has_the_same_form_as_a_short_one() -> None:
    async with client() as http, http.post("/api/show", json={"model": "plain"}) as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
        assert int(reply.headers["Content-Length"]) == len(await reply.read()) > N_LICENSE
        assert reply.headers["X-Request-Id"]
        # The connection stays open.
        async with http.get("/api/version") as after:
            assert after.status == 200


@pytest.mark.parametrize("path", ["/api/embed", "/v1/embeddings"])
async def test_vectors_take_their_memory_as_they_come(path: str) -> None:
    generation = FakeGeneration(vector=(0.5,) * 10_000)
    async with client(generation, answer_budget=make_answer_budget(2 * MIB)) as http:
        asked = {"model": "embedder", "input": ["a"] * 100}
        async with http.post(path, json=asked) as reply:
            assert reply.status == 503
            assert BUSY in await reply.text()
        async with http.post(path, json=asked | {"input": ["a", "b"]}) as reply:
            assert reply.status == 200


async def test_work_for_a_client_who_left_keeps_its_place() -> None:
    answer_budget = make_answer_budget()
    ended = asyncio.Event()
    n_running = 0

    async def work() -> None:
        nonlocal n_running
        n_running += 1
        try:
            await ended.wait()
        finally:
            n_running -= 1

    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    asking = [asyncio.ensure_future(answer_budget.run(work)) for _ in range(6)]
    await settle()
    assert n_running == MAX_CONVERSIONS
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    last = asyncio.ensure_future(answer_budget.run(work))
    await settle()
    assert n_running == MAX_CONVERSIONS
    ended.set()
    await last
    assert n_running == 0
