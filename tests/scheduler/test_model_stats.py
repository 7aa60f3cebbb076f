"""Statistics of a resident model's answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd import core, errors
from specd.scheduler import Lease, LoadedEngine, ModelStats
from tests.scheduler.test_loop import FACTS, LoadableEngine, Starter, lease, running

REQUEST = core.EngineRequest(prompt=("x",), sampling=core.SamplingParams())


def done(
    seconds: float = 1.0,
    speedup: float | None = None,
    *,
    reason: str = "",
    n: int = 0,
    threshold: float | None = None,
) -> core.Done:
    return core.Done(
        reason=core.StopReason.STOP,
        usage=core.Usage(n_generated=9, generate_ns=int(seconds * 1e9)),
        speculation=core.SpeculationStats(
            draft_n=2 * n,
            draft_n_accepted=n,
            speedup=speedup,
            threshold=threshold,
            reason=reason,
            state=core.SpeculationState.ACTIVE if speedup else core.SpeculationState.OFF,
        ),
    )


def total(*answers: core.Done) -> ModelStats:
    model_stats = ModelStats()
    for answer in answers:
        model_stats = model_stats.with_answer(answer)
    return model_stats


def test_the_statistics_are_empty_before_the_first_answer() -> None:
    assert (ModelStats().gain, ModelStats().acceptance_rate, ModelStats().last) == (None, 0.0, None)
    assert total(done(3.0)).gain is None


def test_a_long_answer_counts_for_more() -> None:
    model_stats = total(done(3.0, 2.0, n=6), done(1.0, 1.0, n=0), done(0.0, 9.0))
    assert model_stats.gain == 1.75
    assert (model_stats.n_requests, model_stats.draft_n, model_stats.draft_n_accepted) == (3, 12, 6)
    assert model_stats.acceptance_rate == 0.5


def test_the_threshold_is_that_of_the_newest_answer_that_has_one() -> None:
    none = done(reason=core.NoPair.DISABLED_BY_USER)
    assert total(done(threshold=0.5), done(threshold=0.25), none).threshold == 0.25


def test_a_request_without_drafts_is_counted_but_not_in_the_drafters_statistics() -> None:
    drafted = done(1.0, 2.0)
    model_stats = total(drafted, done(9.0, 1.0, reason=core.NoPair.DISABLED_BY_USER))
    assert (model_stats.n_requests, model_stats.gain, model_stats.last) == (
        2,
        2.0,
        drafted.speculation,
    )


answers = st.builds(
    done,
    st.floats(0.0, 1e4),
    st.none() | st.floats(0.1, 10.0),
    reason=st.sampled_from(["", "does_not_pay", "disabled_by_user"]),
    n=st.integers(0, 9),
)


@given(st.lists(answers))
def test_the_gain_lies_between_the_gains_of_the_answers_in_any_order(
    parts: list[core.Done],
) -> None:
    model_stats, backwards = total(*parts), total(*reversed(parts))
    assert model_stats.n_requests == len(parts)
    assert model_stats.draft_n_accepted <= model_stats.draft_n
    told = [
        part.speculation.speedup
        for part in parts
        if part.speculation.speedup is not None
        and part.usage.generate_ns
        and part.speculation.reason != "disabled_by_user"
    ]
    if not told:
        assert model_stats.gain is None
        return
    assert model_stats.gain is not None
    assert backwards.gain == pytest.approx(model_stats.gain)
    assert min(told) * (1 - 1e-9) <= model_stats.gain <= max(told) * (1 + 1e-9)


# --------------------------------------------------------------------------- residents


class Answering(LoadableEngine):
    """An engine that answers every request with `events`."""

    events: tuple[core.Event, ...] = (core.Token(text="a"), done(1.0, 1.5, n=1))

    async def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        for event in self.events:
            yield event

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        return core.Embedding(vector=(1.0,), n_tokens=1)


class AnsweringStarter(Starter):
    def __call__(self, spec: core.LoadSpec) -> LoadableEngine:
        engine = Answering(spec)
        self.started.put_nowait(engine)
        return engine


async def cannot_reload(crash: errors.SpecdError) -> LoadedEngine:
    raise crash


async def answered(granted: Lease) -> list[core.Event]:
    return [event async for event in granted.generate(REQUEST)]


async def test_a_resident_counts_the_answers_of_all_its_leases_until_it_is_unloaded() -> None:
    starter = AnsweringStarter()

    async def load() -> None:
        for _ in range(2):
            (await starter.started.get()).loading.set_result(FACTS)

    async with running(starter) as loop, asyncio.TaskGroup() as group:
        group.create_task(load())
        for keep_alive_s, n_before in ((9.0, 0), (0.0, 1), (9.0, 0)):
            async with lease(loop, keep_alive_s=keep_alive_s) as granted:
                assert loop.residents()[0].model_stats.n_requests == n_before
                assert await answered(granted) == list(Answering.events)
                await granted.embed("x", truncate=True)
                await granted.tokenize("x", add_bos=False)
                model_stats = loop.residents()[0].model_stats
                assert (model_stats.n_requests, model_stats.gain) == (n_before + 1, 1.5)


async def test_a_cancelled_or_failed_answer_is_not_counted() -> None:
    counted: list[core.Done] = []
    engine = Answering(core.EngineSpec(weights="a"))
    granted = Lease(LoadedEngine(engine, FACTS, count=counted.append), cannot_reload)
    async with aclosing(granted.generate(REQUEST)) as events:
        await anext(events)
    engine.events = (core.Failed(kind=core.FailureKind.ENGINE, message="no"),)
    assert len(await answered(granted)) == 1
    assert counted == []
