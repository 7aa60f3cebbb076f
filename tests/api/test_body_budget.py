"""Long bodies: each has a bound, and so have all of them together; short ones always find room."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import threading
from functools import partial
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from specd.api.body_budget import (
    EXEMPT_BODY_BYTES,
    MAX_CONVERSIONS,
    BudgetReservation,
    MemoryBudget,
    NoRoom,
)
from tests.api.fakes import FakeGeneration, client

MIB = 2**20
Http = TestClient[Any, Any]
GZIP = {"Content-Encoding": "gzip"}


def asking(n_bytes: int) -> bytes:
    return json.dumps({"model": "plain", "stream": False, "prompt": "x" * n_bytes}).encode()


def test_shares_are_taken_and_given_back() -> None:
    budget = MemoryBudget(MIB)
    shares = [BudgetReservation(budget) for _ in range(3)]
    shares[0].grow(EXEMPT_BODY_BYTES)
    assert budget.free_bytes == MIB
    shares[0].grow(1)
    assert budget.free_bytes == MIB - EXEMPT_BODY_BYTES - 1
    shares[1].grow(MIB // 2)
    with pytest.raises(NoRoom):
        shares[2].grow(MIB // 2)
    shares[1].resize(MIB // 4)
    shares[2].resize(MIB // 2)
    for reservation in shares:
        reservation.resize(0)
    assert budget.free_bytes == MIB


async def status(http: Http, body: bytes, **headers: str) -> tuple[int, str]:
    async with http.post("/api/generate", data=io.BytesIO(body), headers=headers) as reply:
        return reply.status, (await reply.json()).get("error", "")


async def test_a_body_longer_than_all_the_room_is_refused_and_a_short_one_is_not() -> None:
    budget = MemoryBudget(MIB)
    async with client(budget=budget) as http:
        assert await status(http, asking(2 * MIB)) == (503, str(NoRoom()))
        assert await status(http, asking(EXEMPT_BODY_BYTES // 2)) == (200, "")
        assert await status(http, asking(MIB // 2)) == (200, "")
        assert budget.free_bytes == MIB


async def test_a_compressed_body_counts_with_its_decompressed_size() -> None:
    budget = MemoryBudget(3 * MIB)
    folded = gzip.compress(asking(2 * MIB))
    async with client(budget=budget) as http:
        assert await status(http, folded, **GZIP) == (200, "")
        budget.reserve(2 * MIB)
        assert await status(http, folded, **GZIP) == (503, str(NoRoom()))
        assert budget.free_bytes == MIB


async def test_short_ones_that_are_folded_find_room_however_many_and_however_full_it_is() -> None:
    async with client(budget=MemoryBudget(0)) as http:
        folded = gzip.compress(asking(1))
        answers = await asyncio.gather(*(status(http, folded, **GZIP) for _ in range(64)))
    assert answers == [(200, "")] * 64


class Watched(MemoryBudget):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.max_bytes = max_bytes
        self.given_back = asyncio.Event()

    def release(self, n_bytes: int) -> None:
        super().release(n_bytes)
        if self.free_bytes == self.max_bytes:
            self.given_back.set()


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_body_has_its_room_until_its_answer_has_ended(leaves: bool) -> None:
    waiting, budget = asyncio.Event(), Watched(MIB)
    generation = FakeGeneration(script=(waiting,))
    async with client(generation, budget=budget) as http:
        asked = asyncio.ensure_future(status(http, asking(MIB // 2)))
        await waiting.wait()
        assert budget.free_bytes < MIB // 2
        assert (await status(http, asking(MIB // 2)))[0] == 503
        budget.given_back.clear()  # by short ones, which took nothing
        if leaves:
            asked.cancel()
            await generation.closed.wait()
        else:
            await http.close()
        await budget.given_back.wait()
        assert budget.free_bytes == MIB
        await asyncio.gather(asked, return_exceptions=True)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
async def test_every_dialect_answers_when_the_budget_is_used_up(path: str) -> None:
    async with (
        client(budget=MemoryBudget(0)) as http,
        http.post(path, data=io.BytesIO(asking(MIB))) as reply,
    ):
        assert reply.status == 503
        assert "too many long requests" in await reply.text()


async def test_no_more_than_a_few_are_worked_on_at_once() -> None:
    budget, go, began = (
        MemoryBudget(),
        threading.Event(),
        [asyncio.Event() for _ in range(MAX_CONVERSIONS)],
    )
    loop = asyncio.get_running_loop()

    def work(event: asyncio.Event) -> None:
        loop.call_soon_threadsafe(event.set)
        go.wait()

    first = [asyncio.ensure_future(budget.convert(partial(work, event))) for event in began]
    for event in began:
        await event.wait()
    last = asyncio.ensure_future(budget.convert(go.is_set))
    await asyncio.sleep(0)
    go.set()
    assert await last  # it was not begun before
    await asyncio.gather(*first)
