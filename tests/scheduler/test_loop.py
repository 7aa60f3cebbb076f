"""The scheduler's loop: engines are futures, and once a process."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specd import core, errors
from specd.placement import Cpu, Defaults
from specd.runner import Engine, Process
from specd.scheduler import Lease, Requirements, Scheduler, SchedulerLoop
from specd.scheduler.effects import Effect
from specd.scheduler.loop import FindPlacement, RecordUsage
from specd.scheduler.runner_ref import Waiter, as_local
from tests.fakes.in_process_engine import FakeEngine

ROOT = Path(__file__).parents[2]
FAKE = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.fakes.engine")
FACTS = core.EngineFacts(
    n_ctx=4096,
    n_ctx_train=0,
    n_vocab=10,
    target=core.ModelMemory(device="CPU", total_bytes=1, vram_bytes=0),
)
MACHINE = Defaults(devices=[], cpu=Cpu(total_bytes=1, available_bytes=1, n_cores=1))
WANTS = Requirements(fill=MACHINE.fill, min_automatic_ctx=MACHINE.min_ctx)


def fits_always(request: core.PlacementRequest) -> core.Placement:
    return core.Placement(spec=request.spec, fits=True)


def learn_nothing(spec: core.EngineSpec, facts: core.EngineFacts) -> None:
    assert spec.n_ctx == facts.n_ctx


class LoadableEngine(FakeEngine):
    """An engine that has loaded when the test sets `loading`, and ends on request."""

    def __init__(self, spec: core.LoadSpec) -> None:
        self.spec = spec
        self.loading: asyncio.Future[core.EngineFacts] = asyncio.Future()
        self.gone = asyncio.Event()

    async def ready(self) -> core.EngineFacts:
        return await self.loading

    def stop(self) -> None:
        if not self.loading.done():
            self.loading.set_exception(errors.ShuttingDown("stopped"))
        self.gone.set()

    async def ended(self) -> None:
        await self.gone.wait()

    async def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        yield core.Failed(kind=core.FailureKind.ENGINE, message="no model")

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        return [len(pieces)]

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return f"{len(tokens)} tokens"

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        raise errors.EngineError("no model")


class Starter:
    """A starter that queues its engines in the order of their starts."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[LoadableEngine] = asyncio.Queue()

    def __call__(self, spec: core.LoadSpec) -> Engine:
        engine = LoadableEngine(spec)
        self.started.put_nowait(engine)
        return engine


@contextlib.asynccontextmanager
async def running(
    starter: Starter,
    keep_alive_s: float = 300.0,
    max_queue: int = 512,
    max_loaded: int = 1,
    place: FindPlacement = fits_always,
    record_usage: RecordUsage = learn_nothing,
    start: Callable[[core.LoadSpec], Engine] | None = None,
    timeout_s: float = 30.0,
) -> AsyncIterator[SchedulerLoop]:
    scheduler = Scheduler(
        WANTS,
        max_loaded=max_loaded,
        max_queue=max_queue,
        default_keep_alive_s=keep_alive_s,
    )
    loop = SchedulerLoop(
        scheduler,
        start or starter,
        place,
        record_usage,
        clock=lambda: 50.0,
        unix_time=lambda: 1000.0,
        timeout_s=timeout_s,
    )
    loop.start()
    try:
        yield loop
    finally:
        await loop.stop()


def lease(
    loop: SchedulerLoop, weights: str = "a", keep_alive_s: float | None = None
) -> contextlib.AbstractAsyncContextManager[Lease]:
    model = core.LocalModel(name=weights, full_name=weights, digest="0", weights=Path(weights))
    spec = core.EngineSpec(weights=weights, n_ctx=0)
    return loop.lease(spec, model, core.Pair(target=model), keep_alive_s)


async def take(loop: SchedulerLoop, weights: str = "a") -> Lease:
    async with lease(loop, weights) as granted:
        return granted


async def test_a_lease_has_the_facts_of_its_engine() -> None:
    starter = Starter()
    async with running(starter) as loop:
        asking = asyncio.create_task(take(loop))
        engine = await starter.started.get()
        assert as_local(engine.spec).n_ctx == 4096
        assert loop.residents() == []
        engine.loading.set_result(FACTS)
        granted = await asking
        assert granted.facts == FACTS
        assert await granted.tokenize("abc", "d", add_bos=True) == [2]


async def test_residents_have_their_expiry_time() -> None:
    starter = Starter()
    async with running(starter) as loop:
        holding, release = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with lease(loop, keep_alive_s=7.0):
                holding.set()
                await release.wait()

        task = asyncio.create_task(hold())
        (await starter.started.get()).loading.set_result(FACTS)
        await holding.wait()
        [resident] = loop.residents()
        assert (resident.model.name, resident.expires_at) == ("a", 1007.0)
        release.set()
        await task
        async with lease(loop, keep_alive_s=math.inf):
            pass
        assert loop.residents()[0].expires_at == math.inf


async def test_a_failed_load_is_raised_and_logged_and_the_next_request_loads_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starter = Starter()
    async with running(starter) as loop:
        asking = asyncio.create_task(take(loop))
        engine = await starter.started.get()
        engine.loading.set_exception(errors.LoadFailed("why"))
        engine.gone.set()
        with pytest.raises(errors.LoadFailed, match="why"):
            await asking
        assert caplog.messages == ["a was not loaded: why"]
        again = asyncio.create_task(take(loop))
        (await starter.started.get()).loading.set_result(FACTS)
        await again


async def test_cancel_while_loading_stops_the_engine() -> None:
    starter = Starter()
    async with running(starter) as loop:
        asking = asyncio.create_task(take(loop))
        engine = await starter.started.get()
        asking.cancel()
        await engine.ended()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_cancel_while_queued_never_loads_the_model() -> None:
    starter = Starter()
    async with running(starter) as loop:
        first = asyncio.create_task(take(loop, "a"))
        engine = await starter.started.get()
        second = asyncio.create_task(take(loop, "b"))
        third = asyncio.create_task(take(loop, "c"))
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        engine.loading.set_result(FACTS)
        await first
        engine = await starter.started.get()
        assert as_local(engine.spec).weights == "c"
        engine.loading.set_result(FACTS)
        await third
        assert starter.started.empty()


async def test_an_idle_model_is_unloaded_when_its_keep_alive_expires() -> None:
    starter = Starter()
    async with running(starter, keep_alive_s=0.0) as loop:
        asking = asyncio.create_task(take(loop))
        engine = await starter.started.get()
        engine.loading.set_result(FACTS)
        await asking
        await engine.ended()


async def test_unload_ends_an_idle_engine() -> None:
    starter = Starter()
    async with running(starter) as loop:
        asking = asyncio.create_task(take(loop))
        engine = await starter.started.get()
        engine.loading.set_result(FACTS)
        await asking
        loop.unload(core.LocalModel(name="a", full_name="a", digest="0", weights=Path("a")))
        await engine.ended()


async def test_stop_refuses_waiting_requests_and_ends_the_engines() -> None:
    starter = Starter()
    async with running(starter) as loop:
        asking = asyncio.create_task(take(loop))
        engine = await starter.started.get()
        await loop.stop()
        assert engine.gone.is_set()
        with pytest.raises(errors.ShuttingDown):
            await asking
        with pytest.raises(errors.ShuttingDown):
            await take(loop)


async def test_stop_waits_for_a_running_request_within_its_grace_period() -> None:
    starter = Starter()
    async with running(starter) as loop:
        holding, release = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with lease(loop):
                holding.set()
                await release.wait()

        task = asyncio.create_task(hold())
        engine = await starter.started.get()
        engine.loading.set_result(FACTS)
        await holding.wait()
        stopping = asyncio.create_task(loop.stop(grace_s=1000.0))
        with pytest.raises(errors.ShuttingDown):
            await take(loop, "b")
        assert not engine.gone.is_set()
        release.set()
        await task
        await stopping
        assert engine.gone.is_set()


async def test_hurry_ends_the_grace_period() -> None:
    starter = Starter()
    async with running(starter) as loop:
        stop_now = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            entering = asyncio.create_task(stack.enter_async_context(lease(loop)))
            engine = await starter.started.get()
            engine.loading.set_result(FACTS)
            await entering
            stopping = asyncio.create_task(loop.stop(grace_s=1000.0, stop_now=stop_now))
            stop_now.set()
            await stopping
            assert engine.gone.is_set()


@pytest.mark.contract("options.runner")
async def test_a_request_that_cannot_be_placed_fails_and_the_next_one_is_served() -> None:
    def place(request: core.PlacementRequest) -> core.Placement:
        if request.spec.weights == "a":
            raise errors.InvalidOption("there is no such GPU")
        return core.Placement(spec=request.spec, fits=True)

    starter = Starter()
    async with running(starter, place=place) as loop:
        asking, next_one = (asyncio.create_task(take(loop, weights)) for weights in "ab")
        with pytest.raises(errors.InvalidOption, match="no such GPU"):
            await asking
        engine = await starter.started.get()
        engine.loading.set_result(FACTS)
        assert (await next_one).facts == FACTS
        assert as_local(engine.spec).weights == "b"


@pytest.mark.contract("sched.memory")
async def test_each_load_is_placed_and_its_memory_usage_is_recorded() -> None:
    starter = Starter()
    seen: list[tuple[str, list[str]]] = []
    learned: list[tuple[core.EngineSpec, core.EngineFacts]] = []

    def too_little(request: core.PlacementRequest) -> core.Placement:
        seen.append((request.spec.weights, [there.weights for there in request.residents]))
        alone = request.give_up is core.GiveUp.ANYTHING
        return core.Placement(spec=replace(request.spec, n_gpu_layers=3), fits=alone)

    def record_usage(spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        learned.append((spec, facts))

    async with running(starter, max_loaded=3, place=too_little, record_usage=record_usage) as loop:
        first = asyncio.create_task(take(loop, "a"))
        engine = await starter.started.get()
        assert as_local(engine.spec).n_gpu_layers == 3
        engine.loading.set_result(FACTS)
        await first
        second = asyncio.create_task(take(loop, "b"))
        await engine.ended()
        later = await starter.started.get()
        later.loading.set_result(FACTS)
        await second
    assert seen == [("a", []), ("b", ["a"]), ("b", [])]
    assert learned == [(engine.spec, FACTS), (later.spec, FACTS)]


async def test_a_load_is_tried_if_memory_cannot_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(request: core.PlacementRequest) -> core.Placement:
        raise RuntimeError("a bug")

    def forgetful(spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        raise RuntimeError("another")

    starter = Starter()
    async with running(starter, max_loaded=3, place=broken, record_usage=forgetful) as loop:
        for weights in "ab":
            asking = asyncio.create_task(take(loop, weights))
            (await starter.started.get()).loading.set_result(FACTS)
            await asking
        assert len(loop.residents()) == 2
    assert "cannot find a placement for b" in caplog.text
    assert "cannot record the memory that b took" in caplog.text


async def test_a_driver_that_hangs_does_not_delay_other_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = threading.Event()

    def hangs(request: core.PlacementRequest) -> core.Placement:
        answers.wait()
        return core.Placement(spec=request.spec, fits=True)

    starter = Starter()
    try:
        async with running(starter, place=hangs, timeout_s=0.01) as loop:
            asking = asyncio.create_task(take(loop, "a"))
            (await starter.started.get()).loading.set_result(FACTS)
            await asking
    finally:
        answers.set()
    assert "cannot find a placement for a" in caplog.text


@pytest.mark.contract("sched.oom")
@pytest.mark.parametrize(
    "words, n_left", [("ggml: cudaMalloc failed: out of memory", 1), ("bad luck", 2)]
)
async def test_an_answer_without_memory_unloads_the_idle_models(words: str, n_left: int) -> None:
    starter = Starter()
    async with running(starter, max_loaded=3) as loop:
        for weights in "ab":
            asking = asyncio.create_task(take(loop, weights))
            engine = await starter.started.get()
            engine.loading.set_result(FACTS)
            await asking
        failed = core.Failed(kind=core.FailureKind.ENGINE, message=words)
        with pytest.raises(errors.EngineError, match=words):
            async with lease(loop, "b"):
                raise failed.error()
        async with lease(loop, "b"):  # the model is still loaded, and the inbox has been read
            assert len(loop.residents()) == n_left


async def test_an_error_of_the_starter_fails_its_waiters_and_blocks_nothing() -> None:
    starter, faults = Starter(), [RuntimeError("a bug")]

    def broken(spec: core.LoadSpec) -> Engine:
        if faults:
            raise faults.pop()
        return starter(spec)

    async with running(starter, start=broken) as loop:
        with pytest.raises(errors.EngineError, match="internal error"):
            await take(loop)
        asking = asyncio.create_task(take(loop))
        (await starter.started.get()).loading.set_result(FACTS)
        await asking


async def test_an_error_during_a_load_fails_its_waiters_and_blocks_nothing() -> None:
    starter = Starter()
    async with running(starter) as loop:
        asking = asyncio.create_task(take(loop))
        engine = await starter.started.get()
        engine.loading.set_exception(RuntimeError("a bug"))
        with pytest.raises(errors.EngineError, match="could not be started: RuntimeError"):
            await asking
        assert engine.gone.is_set()
        again = asyncio.create_task(take(loop))
        (await starter.started.get()).loading.set_result(FACTS)
        await again


async def test_a_stuck_engine_is_reported_until_it_has_ended() -> None:
    starter = Starter()
    async with running(starter) as loop:
        asking = asyncio.create_task(take(loop))
        engine = await starter.started.get()
        engine.loading.set_result(FACTS)
        await asking
        engine.is_stuck = True
        assert loop.stuck() == []  # the scheduler has not stopped it
        engine.stop()
        # Another engine replaces it nevertheless.
        again = asyncio.create_task(take(loop))
        (await starter.started.get()).loading.set_result(FACTS)
        await again
        assert loop.stuck() == ["a"]
        engine.is_stuck = False
        assert loop.stuck() == []


async def test_an_error_of_the_scheduler_fails_the_waiting_requests() -> None:
    class Broken(Scheduler):
        def request(self, waiter: Waiter) -> list[Effect]:
            raise RuntimeError("a bug")

    starter = Starter()
    decisions = Broken(WANTS, max_loaded=1, max_queue=9, default_keep_alive_s=1)
    loop = SchedulerLoop(decisions, starter, fits_always, learn_nothing)
    loop.start()
    with pytest.raises(errors.EngineError, match="internal error"):
        await take(loop)
    await loop.stop()


async def test_a_crash_unloads_one_model_and_the_next_request_loads_it_again() -> None:
    scheduler = Scheduler(
        WANTS,
        max_loaded=2,
        max_queue=9,
        default_keep_alive_s=9,
    )
    loop = SchedulerLoop(
        scheduler, lambda spec: Process(as_local(spec), command=FAKE), fits_always, learn_nothing
    )
    loop.start()

    def asking(text: str) -> core.EngineRequest:
        return core.EngineRequest(prompt=(text,), sampling=core.SamplingParams())

    async with (
        lease(loop, "other") as other,
        contextlib.aclosing(other.generate(asking("hang"))) as untouched,
    ):
        await anext(untouched)
        async with lease(loop, "a") as doomed:
            events = [event async for event in doomed.generate(asking("crash"))]
            assert isinstance(events[-1], core.Failed)
            assert events[-1].kind is core.FailureKind.CRASHED
        async with lease(loop, "a") as fresh:
            assert isinstance([e async for e in fresh.generate(asking("b"))][-1], core.Done)
        assert await other.tokenize("w1", add_bos=False) == [1]
    await loop.stop()
