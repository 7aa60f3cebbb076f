"""One bench: loads the processes of each run set, runs everything and returns the report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from specd import core
from specd.bench.comparison import compare
from specd.bench.config import BenchConfig
from specd.bench.measure import Bench, Engine, Peer, engine_process
from specd.bench.mix import mixes
from specd.bench.mode import Mode
from specd.bench.peer import PeerLoad, peer_server
from specd.bench.report import MachineInfo, Report
from specd.bench.runs import Run
from specd.bench.schedule import RunSet
from specd.bench.subject import Subject, noise_drafter
from specd.errors import InvalidRequest, StoreError
from specd.settings import Settings
from specd.store.gguf_metadata import read_metadata


@dataclass(frozen=True, slots=True)
class BenchStep:
    """The progress of a bench.

    done_s, total_s: seconds of work done and expected, as if nothing were drafted.
    run: the last one, None before the first.
    """

    done_s: float
    total_s: float
    run: Run | None = None


async def run_bench(
    config: BenchConfig,
    subject: Subject,
    settings: Settings,
    on_step: Callable[[BenchStep], None] = lambda _: None,
    run_sets: Sequence[RunSet] | None = None,
) -> Report:
    """Run every run set and return the report.

    on_step: receives the estimate, then each run as it ends.
    run_sets: replace those of the config.
    Raises LoadFailed, EngineError, InvalidRequest where the engine cannot use the drafter.
    """
    return await _Session(config, subject, settings, on_step, run_sets).report()


class _Session:
    def __init__(
        self,
        config: BenchConfig,
        subject: Subject,
        settings: Settings,
        on_step: Callable[[BenchStep], None],
        run_sets: Sequence[RunSet] | None,
    ) -> None:
        self._config = config
        self._subject = subject
        self._on_step = on_step
        self._machine = MachineInfo.read()
        self._spec = subject.spec(
            settings,
            n_threads=config.n_threads or self._machine.n_cores,
            n_gpu_layers=config.n_gpu_layers,
        )
        self._run_sets = config.run_sets(subject) if run_sets is None else run_sets
        self._facts: core.EngineFacts | None = None
        self._step = BenchStep(0.0, 0.0)
        self._runs: list[Run] = []
        self._notes: list[str] = []

    async def report(self) -> Report:
        began = datetime.now(UTC).astimezone()
        for run_set in self._run_sets:
            try:
                spec = replace(
                    self._spec, n_slots=run_set.streams, drafter=await self._drafter(run_set)
                )
            except StoreError as error:
                self._notes.append(f"Left out: hostile, no useless drafter can be made ({error})")
                continue
            await self._run(run_set, spec)
        if self._facts is None:
            raise InvalidRequest(self._notes[0])
        return Report(
            subject=self._subject,
            spec=replace(self._spec, n_ctx=self._facts.n_ctx),
            engine=self._facts,
            facts=read_metadata(self._subject.target),
            machine=self._machine,
            workloads=self._config.names(self._subject),
            n_prompts=self._config.n_prompts,
            n_repeats=self._config.n_repeats,
            n_tokens=self._config.n_tokens,
            began=began,
            ended=datetime.now(UTC).astimezone(),
            load_average_after=os.getloadavg()[0],
            runs=self._runs,
            comparisons=compare(self._runs),
            mixes=mixes(self._runs),
            peer=self._config.peer,
            notes=self._notes,
        )

    async def _drafter(self, run_set: RunSet) -> str | None:
        """Return the pair's drafter, or a useless copy for a hostile set.  Raises StoreError."""
        if self._subject.drafter is None or not run_set.hostile:
            return self._spec.drafter
        return str(await asyncio.to_thread(noise_drafter, self._subject.drafter))

    async def _run(self, run_set: RunSet, spec: core.EngineSpec) -> None:
        async with engine_process(spec) as (engine, facts), self._peers(run_set, spec) as peers:
            if facts.drafter is None and spec.drafter is not None:
                raise InvalidRequest(f"the engine left the drafter out: {facts.no_pair_detail}")
            if self._facts is None:
                self._expect(facts)
            await self._measure(run_set, engine, peers)

    def _expect(self, facts: core.EngineFacts) -> None:
        """Report the estimate, from the pass costs that the first engine measured."""
        self._facts = facts
        self._step = BenchStep(0.0, sum(run_set.seconds(facts) for run_set in self._run_sets))
        self._on_step(self._step)

    async def _measure(self, run_set: RunSet, engine: Engine, peers: Mapping[Mode, Peer]) -> None:
        assert self._facts is not None
        share_s = run_set.seconds(self._facts) / len(run_set)
        async for run in Bench(engine, peers, run_set).runs():
            self._runs.append(run)
            self._step = replace(self._step, done_s=self._step.done_s + share_s, run=run)
            self._on_step(self._step)

    @asynccontextmanager
    async def _peers(
        self, run_set: RunSet, spec: core.EngineSpec
    ) -> AsyncIterator[Mapping[Mode, Peer]]:
        """Yield a server for every peer mode of the run set, configured as the engine is."""
        async with AsyncExitStack() as stack:
            servers: dict[Mode, Peer] = {}
            for mode in run_set.peer_modes:
                assert self._config.peer is not None
                load = PeerLoad(
                    target=spec.weights,
                    drafter=spec.drafter if mode.n_draft else None,
                    n_draft_max=mode.n_draft,
                    n_threads=spec.n_threads,
                    n_ctx=spec.n_ctx,
                    n_slots=spec.n_slots,
                    kv_type=spec.kv_cache_type,
                    flash_attention=spec.flash_attention,
                    n_gpu_layers=spec.n_gpu_layers,
                )
                server = peer_server(self._config.peer, load)
                servers[mode] = await stack.enter_async_context(server)
            yield servers
