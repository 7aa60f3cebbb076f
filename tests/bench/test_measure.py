"""Test the requests to engines and peers, and their runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pytest

from specd import core
from specd.bench.measure import Bench, Peer
from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Mode
from specd.bench.runs import Answer, Run
from specd.bench.schedule import Group, Item, RunSet
from specd.errors import EngineError

N3 = Mode.peer_draft(3)


class EchoEngine:
    """Answer with the prompt twice, and record requests; fail on the prompt `failing`."""

    def __init__(self, failing: str = "") -> None:
        self.asked: list[core.EngineRequest] = []
        self.n_at_once = self.most_at_once = 0
        self._failing = failing

    async def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        self.asked.append(request)
        self.n_at_once += 1
        self.most_at_once = max(self.most_at_once, self.n_at_once)
        try:
            text = str(request.prompt[0])
            if text == self._failing:
                yield core.Failed(kind=core.FailureKind.ENGINE, message="the decode failed")
                return
            yield core.Token(text=text)
            await asyncio.sleep(0)
            yield core.Token(text=text)
            yield core.Done(
                reason=core.StopReason.LENGTH,
                usage=core.Usage(n_generated=2, generate_ns=1000),
                speculation=core.SpeculationStats(),
            )
        finally:
            self.n_at_once -= 1


class FakePeer:
    """A peer's server that records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float, int]] = []

    async def answer(self, prompt: str, *, n_tokens: int, temperature: float, seed: int) -> Answer:
        self.asked.append((prompt, n_tokens, temperature, seed))
        usage = core.Usage(n_prompt=6, n_cached=1, n_generated=3, generate_ns=2_000_000_000)
        counts = core.SpeculationStats(draft_n=5, draft_n_accepted=4)
        return Answer(prompt.upper(), usage, counts)


def group(number: int, *texts: str) -> Group:
    items = tuple(Item(text, seed=10 * number + i) for i, text in enumerate(texts))
    return Group(workload="test", number=number, repeat=0, items=items)


def run_set(*modes: Mode, groups: tuple[Group, ...] = (group(1, "a"), group(2, "b"))) -> RunSet:
    return RunSet(
        streams=len(groups[0].items),
        groups=groups,
        warm_up=["warm 1", "warm 2"],
        modes=modes,
        temperatures=(0.0, 0.8),
        n_tokens=50,
        drafters=(core.DrafterKind.MODEL,),
    )


async def measured(
    engine: EchoEngine, asked: RunSet, peers: Mapping[Mode, Peer] | None = None
) -> list[Run]:
    return [run async for run in Bench(engine, peers or {}, asked).runs()]


async def test_every_request_has_the_changes_of_its_mode() -> None:
    engine, asked = EchoEngine(), run_set(PLAIN, Mode.fixed(3), AUTO)
    runs = await measured(engine, asked)
    assert len(runs) == len(asked) == 12
    for run, request in zip(runs, engine.asked[-12:], strict=True):
        wanted = {"plain": 0, "k = 3": 3, "auto": None}[run.mode.name]
        assert request.n_draft_max == wanted
        assert request.sampling.temperature == run.temperature
        assert request.sampling.seed == 10 * run.prompt
        assert (request.n_predict, request.shift) == (50, False)
        assert request.drafters == (core.DrafterKind.MODEL,)
        assert run.texts == ("ab"[run.prompt - 1] * 2,)


async def test_warming_up_is_short_and_uses_every_mode() -> None:
    engine = EchoEngine()
    await measured(engine, run_set(PLAIN, Mode.fixed(3), AUTO))
    warm_up = engine.asked[:-12]
    assert {request.prompt[0] for request in warm_up} == {"warm 1", "warm 2"}
    assert {request.n_draft_max for request in warm_up} == {0, 3, None}
    assert all(request.n_predict < 50 for request in warm_up)


async def test_a_peers_modes_go_to_their_own_servers_with_the_same_prompts_and_seeds() -> None:
    engine, plain, drafting = EchoEngine(), FakePeer(), FakePeer()
    peers: dict[Mode, Peer] = {PEER_PLAIN: plain, N3: drafting}
    runs = await measured(engine, run_set(PLAIN, PEER_PLAIN, N3), peers)
    assert sorted(run.texts for run in runs if run.mode == N3) == [("A",), ("A",), ("B",), ("B",)]
    for server in (plain, drafting):
        assert sorted(server.asked[-4:]) == [
            ("a", 50, 0.0, 10),
            ("a", 50, 0.8, 10),
            ("b", 50, 0.0, 20),
            ("b", 50, 0.8, 20),
        ]
    met = next(run for run in runs if run.mode == N3)
    assert (met.n_timed, met.seconds, met.n_drafted, met.n_accepted) == (2, 2.0, 5, 4)


async def test_a_group_is_sent_at_once_and_timed_by_wall_time() -> None:
    engine = EchoEngine()
    ticks = iter(range(1000))
    groups = (group(1, "a", "b", "c"), group(2, "d", "e", "f"))
    bench = Bench(engine, {}, run_set(PLAIN, AUTO, groups=groups), clock=lambda: float(next(ticks)))
    runs = [run async for run in bench.runs()]
    assert engine.most_at_once == 3
    assert {run.texts for run in runs} == {("aa", "bb", "cc"), ("dd", "ee", "ff")}
    assert {(run.streams, run.n_timed, run.seconds) for run in runs} == {(3, 6, 1.0)}


async def test_a_failed_answer_ends_the_bench_with_the_engines_message() -> None:
    engine = EchoEngine(failing="b")
    with pytest.raises(EngineError, match="the decode failed"):
        await measured(engine, run_set(PLAIN, groups=(group(1, "a", "b"), group(2, "c", "d"))))
    assert engine.n_at_once == 0
