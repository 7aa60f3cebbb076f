"""Runs of one engine process: every mode on every prompt, nothing loaded twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from specd import core
from specd.bench.workload import Mode, Workload, order
from specd.errors import EngineError
from specd.runner import Process

#: A pass of every width and a few drafts: enough to page the weights in.
_N_WARM_UP_TOKENS = 16


class Engine(Protocol):
    """What a bench needs of `runner.Process`."""

    def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One answer.  prompt: its number in the workload.  Durations are the engine's own."""

    temperature: float
    prompt: int
    mode: str
    text: str
    usage: core.Usage
    speculation: core.SpeculationStats

    @property
    def n_timed(self) -> int:
        """Tokens that generate_ns covers: the prompt's last pass brought the first one."""
        return self.usage.n_generated - 1

    @property
    def tokens_per_s(self) -> float:
        """0 where nothing was timed."""
        return 1e9 * self.n_timed / self.usage.generate_ns if self.usage.generate_ns else 0.0

    @property
    def overhead_ms(self) -> float | None:
        """Milliseconds per token outside of target passes; None where the engine did not say."""
        if not self.usage.native_ns or self.n_timed <= 0:
            return None
        return (self.usage.generate_ns - self.usage.native_ns) / self.n_timed * 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every mode answers every prompt once per temperature, with that prompt's own seed."""

    workload: Workload
    modes: Sequence[Mode]
    temperatures: Sequence[float]
    n_tokens: int

    def __len__(self) -> int:
        return len(self.temperatures) * len(self.workload.prompts) * len(self.modes)

    def request(self, text: str, mode: Mode, temperature: float, seed: int) -> core.EngineRequest:
        return core.EngineRequest(
            prompt=(text,),
            sampling=core.SamplingParams(temperature=temperature, seed=seed),
            n_predict=self.n_tokens,
            shift=False,
            n_draft_max=mode.n_draft_max,
            mode=mode.speculation,
        )


async def measure(engine: Engine, plan: Plan) -> AsyncIterator[Run]:
    """Warm up, then yield runs as they end.  EngineError with the engine's words if one fails."""
    for temperature in plan.temperatures:
        for i, mode in enumerate(plan.modes):
            text = plan.workload.warm_up[i % len(plan.workload.warm_up)]
            warm_up = Plan(
                workload=plan.workload,
                modes=plan.modes,
                temperatures=plan.temperatures,
                n_tokens=min(plan.n_tokens, _N_WARM_UP_TOKENS),
            )
            await _answer(engine, warm_up.request(text, mode, temperature, seed=0))
    for temperature in plan.temperatures:
        for prompt, i in order(len(plan.workload.prompts), len(plan.modes)):
            mode, text = plan.modes[i], plan.workload.prompts[prompt]
            answer, done = await _answer(
                engine, plan.request(text, mode, temperature, seed=prompt + 1)
            )
            yield Run(
                temperature=temperature,
                prompt=prompt,
                mode=mode.name,
                text=answer,
                usage=done.usage,
                speculation=done.speculation,
            )


async def _answer(engine: Engine, request: core.EngineRequest) -> tuple[str, core.Done]:
    pieces = []
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            match event:
                case core.Token():
                    pieces.append(event.text)
                case core.Done():
                    return "".join(pieces), event
                case core.Failed():
                    raise EngineError(event.message)
    raise AssertionError("a request ended without a terminal event")


@asynccontextmanager
async def engine_process(spec: core.EngineSpec) -> AsyncIterator[tuple[Process, core.EngineFacts]]:
    """A loaded engine, gone when the block is left.  LoadFailed, LoadStalled."""
    process = Process(spec)
    try:
        yield process, await process.ready()
    finally:
        process.stop()
        await process.ended()
