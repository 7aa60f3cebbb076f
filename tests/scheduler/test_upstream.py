"""Upstream models in the scheduler: engines on other servers that fail, stop or send too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

import pytest

from specd import core, errors
from specd.options import Options
from specd.runner import ChatRequest, Chats, Engine
from specd.scheduler import Lease, SchedulerLoop
from specd.scheduler.effects import Grant, Refuse, Start
from specd.scheduler.runner_ref import Waiter
from specd.scheduler.scheduler import Scheduler
from tests.fakes.in_process_engine import FakeEngine
from tests.scheduler.factories import requirements, waiter
from tests.scheduler.test_loop import FACTS, Starter, running

MODEL = core.UpstreamModel(
    name="far:latest", full_name="far:latest", digest="", engine="there", upstream_name="far"
)
SPEC = core.UpstreamSpec(engine="there", model="far")
DONE = core.Done(
    reason=core.StopReason.STOP, usage=core.Usage(), speculation=core.SpeculationStats()
)
LATE = core.Delta(content="late")
GONE = core.Failed(kind=core.FailureKind.CRASHED, message="connection lost")
Event = core.Delta | core.Done | core.Failed


class UpstreamEngine(FakeEngine):
    """An engine that ends only when it is stopped."""

    completions = None  # type: ignore[assignment]  # it only accepts messages

    def __init__(self, *events: Event | Exception, refusal: Exception | None = None) -> None:
        self.events = events
        self.refusal = refusal
        self.stopped = asyncio.Event()

    @property
    def chats(self) -> Chats:  # type: ignore[override]
        return self

    async def ready(self) -> core.EngineFacts:
        if self.refusal is not None:
            raise self.refusal
        return FACTS

    def stop(self) -> None:
        self.stopped.set()

    async def ended(self) -> None:
        await self.stopped.wait()

    async def chat(self, request: ChatRequest, /) -> AsyncGenerator[Event, None]:
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event


class UpstreamStarter(Starter):
    """A starter of the given engines, in order."""

    def __init__(self, *engines: UpstreamEngine) -> None:
        super().__init__()
        self.left = list(engines)

    def __call__(self, spec: core.LoadSpec) -> Engine:
        return self.left.pop(0)


def leased(loop: SchedulerLoop) -> AbstractAsyncContextManager[Lease]:
    return loop.lease(SPEC, MODEL, core.Pair(target=MODEL))


async def answer(*engines: UpstreamEngine) -> list[Event]:
    request = ChatRequest(model="far", messages=(), options=Options())
    async with running(UpstreamStarter(*engines)) as loop, leased(loop) as lease:
        return [event async for event in lease.chat(request)]


@pytest.mark.parametrize("refusal", [errors.LoadFailed("no"), errors.OutOfMemory("no"), OSError()])
async def test_a_refused_load_refuses_its_request_and_the_next_one_tries_again(
    refusal: Exception,
) -> None:
    starter = UpstreamStarter(UpstreamEngine(refusal=refusal), UpstreamEngine())
    async with running(starter) as loop:
        with pytest.raises(errors.EngineError):
            async with leased(loop):
                pass
        async with leased(loop) as lease:
            assert lease.takes_messages
    assert starter.left == []


async def test_a_lost_connection_before_the_first_token_repeats_the_request() -> None:
    assert await answer(UpstreamEngine(GONE), UpstreamEngine(LATE, DONE)) == [LATE, DONE]


async def test_a_lost_connection_after_it_is_the_answer() -> None:
    assert await answer(UpstreamEngine(LATE, GONE)) == [LATE, GONE]


@pytest.mark.parametrize("end", [DONE, core.Failed(kind=core.FailureKind.ENGINE, message="no")])
async def test_nothing_follows_the_end_of_an_answer(end: Event) -> None:
    assert await answer(UpstreamEngine(end, LATE, DONE)) == [end]


async def test_an_unexpected_exception_is_an_error_of_the_engine() -> None:
    with pytest.raises(errors.EngineError, match="failed unexpectedly: ConnectionError"):
        await answer(UpstreamEngine(LATE, ConnectionError("reset")))


async def test_memory_short_on_another_server_unloads_nothing_here() -> None:
    async with running(UpstreamStarter(UpstreamEngine())) as loop:
        with pytest.raises(errors.EngineError):
            async with leased(loop):
                raise errors.EngineError("CUDA error: out of memory")
        assert [resident.model.name for resident in loop.residents()] == ["far:latest"]


def upstream_waiter(waiter_id: int, name: str = "far") -> Waiter:
    model = core.UpstreamModel(
        name=name, full_name=name, digest="", engine="there", upstream_name=name
    )
    spec = core.UpstreamSpec(engine="there", model=name)
    return Waiter(id=waiter_id, spec=spec, model=model, pair=core.Pair(target=model))


def test_a_full_queue_of_one_kind_does_not_refuse_the_other() -> None:
    scheduler = Scheduler(requirements(), max_loaded=1, max_queue=1, default_keep_alive_s=9)
    for number in range(2):
        scheduler.request(waiter(number, "a"))
    [refused] = scheduler.request(waiter(2, "a"))
    assert isinstance(refused, Refuse)
    [started] = scheduler.request(upstream_waiter(3))
    assert isinstance(started, Start)
    assert scheduler.loaded(started.runner_id, 0.0) == [Grant(3, started.runner_id)]


def test_each_upstream_model_is_started_once_for_all_its_waiters() -> None:
    scheduler = Scheduler(requirements(), max_loaded=1, max_queue=9, default_keep_alive_s=9)
    effects = [
        effect
        for number, name in enumerate(("far", "far", "farther", "far"))
        for effect in scheduler.request(upstream_waiter(number, name))
    ]
    assert [type(effect) for effect in effects] == [Start, Start]
    granted = scheduler.loaded(1, 0.0)
    assert {effect.waiter_id for effect in granted if isinstance(effect, Grant)} == {0, 1, 3}
