"""One bench from the question to the report: find the pair, load it, run everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from specd import core
from specd.bench.comparison import compare
from specd.bench.machine import Machine
from specd.bench.measure import Bench, engine_process
from specd.bench.mix import mixes
from specd.bench.mode import AUTO, PLAIN, Mode
from specd.bench.plan import Leg, Outline, make_legs
from specd.bench.rendering import Renderer
from specd.bench.report import Report
from specd.bench.runs import Run
from specd.bench.subject import Subject, find_subject
from specd.bench.synthetic import parse_count
from specd.bench.workload import HOSTILE, WORKLOADS, load_workload
from specd.errors import InvalidRequest
from specd.settings import Settings
from specd.store.facts import read_facts

#: The size of the target where nobody names a model: small for a server, large beside a drafter.
DEFAULT_SIZE = "1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `specd bench` was asked.

    target_size: "" leaves the target as it is, but for the demo pair's, which becomes DEFAULT_SIZE.
    n_prompts: of each workload in each of n_repeats.  streams: how many are asked at once.
    draft_lengths: of the fixed modes.  each_drafter: auto with one kind of drafter alone, too.
    overhead: plain decoding alone.
    n_threads: 0 is as many as the daemon would use.
    """

    model: str = ""
    target: Path | None = None
    drafter: Path | None = None
    target_size: str = ""
    workloads: Sequence[str] = WORKLOADS
    n_prompts: int = 2
    n_repeats: int = 1
    n_tokens: int = 48
    temperatures: Sequence[float] = (0.0, 0.8)
    draft_lengths: Sequence[int] = (1, 3, 7)
    streams: Sequence[int] = (1,)
    each_drafter: bool = False
    overhead: bool = False
    n_threads: int = 0
    n_gpu_layers: int = -1

    def modes(self, *, has_drafter: bool) -> tuple[Mode, ...]:
        if self.overhead:
            return (PLAIN,)
        if not has_drafter:
            return (PLAIN, AUTO)
        alone = map(Mode.drafter, core.DrafterKind) if self.each_drafter else ()
        return (PLAIN, *map(Mode.fixed, self.draft_lengths), *alone, AUTO)

    def legs(self, subject: Subject) -> tuple[Leg, ...]:
        """InvalidRequest where the workloads cannot fill them."""
        has_drafter = subject.drafter is not None
        names = [name for name in self.workloads if has_drafter or name != HOSTILE]
        outline = Outline(
            workloads=[load_workload(name) for name in names],
            modes=self.modes(has_drafter=has_drafter),
            temperatures=self.temperatures,
            n_tokens=self.n_tokens,
            n_prompts=self.n_prompts,
            n_repeats=self.n_repeats,
            streams=self.streams,
        )
        return tuple(make_legs(outline, Renderer.of(subject.target).render))

    def subject(self, settings: Settings, on_padding: Callable[[float], None]) -> Subject:
        """The pair; writing a large target may take seconds, `on_padding` hears how far it is."""
        subject = find_subject(self.model, self.target, self.drafter, settings)
        size = self.target_size
        if not size and not self.model and self.target is None:
            size = DEFAULT_SIZE
        if not size:
            return subject
        try:
            n_parameters = parse_count(size)
        except ValueError as error:
            raise InvalidRequest(f"--target-size: {error}") from error
        return subject.enlarged(n_parameters, on_padding)


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of work done and expected in all, as if nothing were drafted.  run: the last one."""

    done_s: float
    total_s: float
    run: Run | None = None


async def run_bench(
    question: Question,
    subject: Subject,
    settings: Settings,
    on_step: Callable[[Step], None] = lambda _: None,
) -> Report:
    """Load what each leg needs and run every mode; `on_step` hears the estimate, then the runs.

    Raises LoadFailed, EngineError, InvalidRequest where the engine cannot use the drafter.
    """
    machine, began = Machine.read(), datetime.now(UTC).astimezone()
    spec = subject.spec(
        settings,
        n_threads=question.n_threads or machine.n_cores,
        n_gpu_layers=question.n_gpu_layers,
    )
    legs = question.legs(subject)
    runs: list[Run] = []
    first: core.EngineFacts | None = None
    done_s = total_s = 0.0
    for leg in legs:
        async with engine_process(replace(spec, n_slots=leg.streams)) as (engine, facts):
            if facts.drafter is None and spec.drafter is not None:
                raise InvalidRequest(f"the engine left the drafter out: {facts.no_pair_detail}")
            if first is None:
                first, total_s = facts, sum(leg.seconds(facts) for leg in legs)
                on_step(Step(0.0, total_s))
            async for run in Bench(engine, {}, leg).runs():
                runs.append(run)
                done_s += leg.seconds(first) / len(leg)
                on_step(Step(done_s, total_s, run))
    assert first is not None
    return Report(
        subject=subject,
        spec=replace(spec, n_ctx=first.n_ctx),
        engine=first,
        facts=read_facts(subject.target),
        machine=machine,
        workloads=question.workloads,
        n_prompts=question.n_prompts,
        n_repeats=question.n_repeats,
        n_tokens=question.n_tokens,
        began=began,
        ended=datetime.now(UTC).astimezone(),
        load_average_after=os.getloadavg()[0],
        runs=runs,
        comparisons=compare(runs),
        mixes=mixes(runs),
    )
