"""The runs of one run set: every mode on every prompt, with each model loaded once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from specd import core
from specd.bench.mode import Mode
from specd.bench.runs import Answer, Run, combine_answers
from specd.bench.schedule import N_WARM_UP_TOKENS, Group, Item, RunSet
from specd.errors import EngineError
from specd.runner import EngineClient, Process


class Engine(Protocol):
    """The part of `runner.Process` that a bench uses."""

    def generate(self, request: core.EngineRequest) -> core.Stream[core.Event]: ...


@dataclass(frozen=True, slots=True)
class EngineReply:
    """A whole answer, with logprobs where the request asked for them."""

    text: str
    logprobs: tuple[core.TokenLogprob, ...]
    done: core.Done


async def ask(engine: Engine, request: core.EngineRequest) -> EngineReply:
    """Return the whole answer.  Raises EngineError with the engine's message."""
    pieces: list[str] = []
    logprobs: list[core.TokenLogprob] = []
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            match event:
                case core.Token():
                    pieces.append(event.text)
                    logprobs += event.logprobs
                case core.Done():
                    return EngineReply("".join(pieces), tuple(logprobs), event)
                case core.Failed():
                    raise EngineError(event.message)
    raise AssertionError("a request ended without a terminal event")


class Peer(Protocol):
    """The part of `PeerServer` that a bench uses."""

    async def answer(
        self, prompt: str, *, n_tokens: int, temperature: float, seed: int
    ) -> Answer: ...


class Bench:
    """A loaded engine and its peers, which run one run set.

    peers: a server for each peer mode of the run set.  clock: seconds.
    """

    def __init__(
        self,
        engine: Engine,
        peers: Mapping[Mode, Peer],
        run_set: RunSet,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._run_set = run_set
        self._clock = clock

    async def runs(self) -> AsyncIterator[Run]:
        """Warm up, then yield each run as it ends.  Raises EngineError with a server's message."""
        n_tokens = self._run_set.n_tokens
        for group, mode, temperature in self._run_set.warm_ups():
            await self._run(group, mode, temperature, min(n_tokens, N_WARM_UP_TOKENS))
        for group, mode, temperature in self._run_set.runs():
            yield await self._run(group, mode, temperature, n_tokens)

    async def _run(self, group: Group, mode: Mode, temperature: float, n_tokens: int) -> Run:
        """Send all prompts of the group at once and return their combined run."""
        began = self._clock()
        try:
            async with asyncio.TaskGroup() as tasks:
                started = [
                    tasks.create_task(self._answer(item, mode, temperature, n_tokens))
                    for item in group.items
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return combine_answers(
            [task.result() for task in started],
            workload=group.workload,
            temperature=temperature,
            prompt=group.number,
            repeat=group.repeat,
            mode=mode,
            wall_s=self._clock() - began,
        )

    async def _answer(self, item: Item, mode: Mode, temperature: float, n_tokens: int) -> Answer:
        if mode.is_peer:
            return await self._peers[mode].answer(
                item.text, n_tokens=n_tokens, temperature=temperature, seed=item.seed
            )
        request = self._run_set.request(item, mode, temperature, n_tokens)
        reply = await ask(self._engine, request)
        return Answer(reply.text, reply.done.usage, reply.done.speculation)


@asynccontextmanager
async def engine_process(
    spec: core.EngineSpec,
) -> AsyncIterator[tuple[EngineClient, core.EngineFacts]]:
    """Yield a loaded engine and stop it after the block.  Raises LoadFailed, LoadStalled."""
    process = Process(spec)
    try:
        facts = await process.ready()
        yield process.client, facts
    finally:
        process.stop()
        await process.ended()
