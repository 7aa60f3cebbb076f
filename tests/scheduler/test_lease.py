"""A crash before the first token: the lease loads the model again, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from specd import core, errors
from specd.runner import Engine
from specd.scheduler import Lease, LoadedEngine
from tests.scheduler.test_loop import FACTS, LoadableEngine, Starter, lease, running

REQUEST = core.EngineRequest(prompt=("x",), sampling=core.SamplingParams())
CRASHED = core.Failed(kind=core.FailureKind.CRASHED, message="gone")
DONE = core.Done(
    reason=core.StopReason.STOP, usage=core.Usage(), speculation=core.SpeculationStats()
)


class Scripted(LoadableEngine):
    """Answers every request with `events`, and every call with a crash if there are none."""

    def __init__(self, *events: core.Event) -> None:
        super().__init__(core.EngineSpec(weights="a"))
        self.events = events
        self.n_requests = 0
        if not events or CRASHED in events:
            self.gone.set()

    async def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        self.n_requests += 1
        for event in self.events:
            yield event

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        self.n_requests += 1
        await asyncio.sleep(0)
        if not self.events:
            raise errors.EngineCrashed("gone")
        return [7]


def lease_of(
    *engines: Scripted, facts: Sequence[core.EngineFacts] = ()
) -> tuple[Lease, list[errors.SpecdError]]:
    """Return a lease on the first engine that is reloaded as the next, and its crashes."""
    crashes: list[errors.SpecdError] = []
    loads = iter([*facts, *[FACTS] * len(engines)])
    following = iter(engines)

    async def load(crash: errors.SpecdError) -> LoadedEngine:
        crashes.append(crash)
        return LoadedEngine(next(following), next(loads))

    return Lease(LoadedEngine(next(following), next(loads)), load), crashes


async def events_of(lease: Lease) -> list[core.Event]:
    return [event async for event in lease.generate(REQUEST)]


@pytest.mark.parametrize("before", [(), (core.Started(),)])
async def test_a_crash_before_the_first_token_repeats_the_request(
    before: tuple[core.Event, ...],
) -> None:
    lease, crashes = lease_of(Scripted(*before, CRASHED), Scripted(core.Token(text="a"), DONE))
    assert await events_of(lease) == [*before, core.Token(text="a"), DONE]
    assert [str(crash) for crash in crashes] == ["gone"]


async def test_a_crash_after_the_first_token_ends_the_answer() -> None:
    lease, crashes = lease_of(Scripted(core.Token(text="a"), CRASHED))
    assert await events_of(lease) == [core.Token(text="a"), CRASHED]
    assert crashes == []


async def test_a_second_crash_ends_the_answer() -> None:
    lease, crashes = lease_of(Scripted(CRASHED), Scripted(CRASHED), Scripted(DONE))
    assert await events_of(lease) == [CRASHED]
    assert len(crashes) == 1


async def test_a_reload_with_a_shorter_context_raises_the_crash() -> None:
    shorter = replace(FACTS, n_ctx=FACTS.n_ctx - 1)
    lease, _ = lease_of(Scripted(CRASHED), Scripted(DONE), facts=[FACTS, shorter])
    with pytest.raises(errors.EngineCrashed, match="gone"):
        await events_of(lease)


async def test_calls_that_crash_together_load_the_model_once() -> None:
    second = Scripted(DONE)
    lease, crashes = lease_of(Scripted(), second)
    calls = [lease.tokenize("x", add_bos=True) for _ in range(9)]
    assert await asyncio.gather(*calls) == [[7]] * 9
    assert (len(crashes), second.n_requests) == (1, 9)


async def test_a_call_that_crashes_twice_is_an_error() -> None:
    lease, crashes = lease_of(Scripted(), Scripted(), Scripted(DONE))
    with pytest.raises(errors.EngineCrashed, match="gone"):
        await lease.tokenize("x", add_bos=True)
    assert len(crashes) == 1


class CrashingStarter(Starter):
    """Starts engines that crash at every call."""

    def __call__(self, spec: core.LoadSpec) -> Engine:
        engine = Scripted()
        engine.gone.clear()
        self.started.put_nowait(engine)
        return engine


async def test_a_crash_during_the_shutdown_ends_the_request() -> None:
    starter = CrashingStarter()
    async with running(starter) as loop, AsyncExitStack() as stack:
        leasing = asyncio.ensure_future(stack.enter_async_context(lease(loop)))
        (await starter.started.get()).loading.set_result(FACTS)
        held = await leasing
        await loop.stop()
        with pytest.raises(errors.ShuttingDown):
            await held.tokenize("x", add_bos=True)
