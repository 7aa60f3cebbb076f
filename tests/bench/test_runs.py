"""What is asked of an engine, and what becomes of its answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from specd import core
from specd.bench.runs import Plan, measure
from specd.bench.workload import AUTO, PLAIN, Mode, Workload
from specd.errors import EngineError

WORKLOAD = Workload("test", ("a", "b", "c"), ("warm 1", "warm 2"))


class Parrot:
    """Says its prompt twice and remembers what it was asked; fails on the prompt `failing`."""

    def __init__(self, failing: str = "") -> None:
        self.asked: list[core.EngineRequest] = []
        self._failing = failing

    async def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        self.asked.append(request)
        text = str(request.prompt[0])
        if text == self._failing:
            yield core.Failed(kind=core.FailureKind.ENGINE, message="the decode failed")
            return
        yield core.Token(text=text)
        yield core.Token(text=text)
        yield core.Done(
            reason=core.StopReason.LENGTH,
            usage=core.Usage(n_generated=2, generate_ns=1000),
            speculation=core.SpeculationStats(),
        )


def plan(*modes: Mode, n_tokens: int = 50) -> Plan:
    return Plan(workload=WORKLOAD, modes=modes, temperatures=(0.0, 0.8), n_tokens=n_tokens)


async def test_every_run_is_asked_for_as_its_mode_says() -> None:
    engine, asked = Parrot(), plan(PLAIN, Mode.fixed(3), AUTO)
    runs = [run async for run in measure(engine, asked)]
    assert len(runs) == len(asked) == 18
    counted = engine.asked[-18:]
    for run, request in zip(runs, counted, strict=True):
        wanted = {"plain": 0, "k = 3": 3, "auto": None}[run.mode]
        assert request.n_draft_max == wanted
        fixed = request.mode is core.SpeculationMode.FIXED
        assert fixed == (run.mode == "k = 3")
        assert request.sampling.temperature == run.temperature
        assert run.text == WORKLOAD.prompts[run.prompt] * 2


async def test_a_prompt_has_one_seed_in_all_modes_and_temperatures() -> None:
    engine, asked = Parrot(), plan(PLAIN, AUTO)
    _ = [run async for run in measure(engine, asked)]
    seeds = {(request.prompt, request.sampling.seed) for request in engine.asked[-12:]}
    assert len(seeds) == 3
    assert len({seed for _, seed in seeds}) == 3


async def test_warming_up_uses_every_mode_and_none_of_the_prompts() -> None:
    engine, asked = Parrot(), plan(PLAIN, Mode.fixed(3), AUTO)
    _ = [run async for run in measure(engine, asked)]
    warm_up = engine.asked[:-18]
    assert {request.prompt[0] for request in warm_up} == {"warm 1", "warm 2"}
    assert {request.n_draft_max for request in warm_up} == {0, 3, None}
    assert all(request.n_predict < 50 for request in warm_up)


async def test_an_answer_that_fails_ends_the_bench_with_the_engines_words() -> None:
    with pytest.raises(EngineError, match="the decode failed"):
        _ = [run async for run in measure(Parrot(failing="b"), plan(PLAIN, AUTO))]
