"""The events that the loop reports of models, and of the wait of each request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specd import core, errors, metrics
from specd.scheduler import Scheduler, SchedulerLoop
from tests.scheduler.test_loop import FACTS, WANTS, Starter, fits_always, learn_nothing


class Listening(metrics.SchedulerObserver):
    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def loaded(self, model: str, took_s: float) -> None:
        self.heard.append(("loaded", model, took_s))

    def load_failed(self, model: str, error: errors.SpecdError) -> None:
        self.heard.append(("failed", model, type(error).__name__))

    def left(self, model: str, reason: str) -> None:
        self.heard.append(("left", model, str(reason)))

    def engine_crashed(self, model: str) -> None:
        self.heard.append(("crashed", model))

    def refused(self) -> None:
        self.heard.append(("refused",))


class Bench:
    """A scheduler loop for one model, with a queue of one and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.starter = Starter()
        self.listening = Listening()
        self.loop = SchedulerLoop(
            Scheduler(WANTS, max_loaded=1, max_queue=1, default_keep_alive_s=300.0),
            self.starter,
            fits_always,
            learn_nothing,
            clock=lambda: self.now,
            observer=self.listening,
        )

    async def use(self, weights: str) -> metrics.RequestRecord:
        """Use the model in a request; return the record of the request."""
        record = metrics.RequestRecord()
        model = core.LocalModel(
            name=f"{weights}:latest", full_name=weights, digest="", weights=Path(weights)
        )
        spec = core.EngineSpec(weights=weights)
        pair = core.Pair(target=model)
        with metrics.record_context(record):
            async with self.loop.lease(spec, model, pair):
                pass
        return record

    async def load(self, weights: str, took_s: float = 1.0) -> metrics.RequestRecord:
        asking = asyncio.create_task(self.use(weights))
        engine = await self.starter.started.get()
        self.now += took_s
        engine.loading.set_result(FACTS)
        return await asking

    async def heard(self, *what: object) -> None:
        while what not in self.listening.heard:
            await a_turn()


async def a_turn() -> None:
    """Let all other tasks run once."""
    await asyncio.sleep(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@contextlib.asynccontextmanager
async def started(bench: Bench) -> AsyncIterator[Bench]:
    bench.loop.start()
    try:
        yield bench
    finally:
        await bench.loop.stop()


async def test_a_wait_is_reported_as_load_or_queue(bench: Bench) -> None:
    async with started(bench):
        record = await bench.load("a", took_s=3.0)
        assert (record.waited_s, record.loading_s) == (3.0, 3.0)
        assert (await bench.use("a")).waited_s == 0.0
        blocking = asyncio.create_task(bench.use("b"))
        engine = await bench.starter.started.get()
        bench.now += 2.0
        waiting = asyncio.create_task(bench.use("a"))  # after the load of another model
        while not bench.loop.waiting()[1:]:
            await a_turn()
        bench.now += 5.0
        engine.loading.set_result(FACTS)
        assert (await blocking).loading_s == 7.0
        engine = await bench.starter.started.get()
        bench.now += 1.0
        engine.loading.set_result(FACTS)
        record = await waiting
        assert (record.waited_s, record.loading_s) == (6.0, 1.0)
    assert bench.listening.heard == [
        ("loaded", "a:latest", 3.0),
        ("left", "a:latest", "make_room"),
        ("loaded", "b:latest", 7.0),
        ("left", "b:latest", "make_room"),
        ("loaded", "a:latest", 1.0),
        ("left", "a:latest", "shutdown"),
    ]


async def test_a_failed_load_is_reported(bench: Bench) -> None:
    async with started(bench):
        asking = asyncio.create_task(bench.use("a"))
        engine = await bench.starter.started.get()
        bench.now += 4.0
        engine.loading.set_exception(errors.LoadFailed("no GGUF"))
        engine.gone.set()
        with pytest.raises(errors.LoadFailed):
            await asking
    assert bench.listening.heard == [("failed", "a:latest", "LoadFailed")]


async def test_a_load_without_waiters_is_reported_as_unwanted(bench: Bench) -> None:
    async with started(bench):
        asking = asyncio.create_task(bench.use("a"))
        await bench.starter.started.get()
        asking.cancel()
        await bench.heard("left", "a:latest", "unwanted")


async def test_an_engine_that_exits_by_itself_is_reported_as_crashed(
    bench: Bench,
) -> None:
    async with started(bench):
        asking = asyncio.create_task(bench.use("a"))
        engine = await bench.starter.started.get()
        engine.loading.set_result(FACTS)
        await asking
        engine.gone.set()
        await bench.heard("crashed", "a:latest")
        await bench.load("a")
        bench.now += 301.0
        bench.loop.unload(core.LocalModel(name="a", full_name="a", digest="", weights=Path("a")))
        await bench.heard("left", "a:latest", "expired")
    assert bench.listening.heard.count(("crashed", "a:latest")) == 1


async def test_a_full_queue_is_reported(bench: Bench) -> None:
    async with started(bench):
        asking = [asyncio.create_task(bench.use("a")) for _ in range(3)]
        await bench.heard("refused")
        engine = await bench.starter.started.get()
        engine.loading.set_result(FACTS)
        ended = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(end).__name__ for end in ended].count("QueueFull") == 1
