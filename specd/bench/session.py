"""One bench from the question to the report: find the pair, load it once, run everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from specd.bench.comparison import compare
from specd.bench.machine import Machine
from specd.bench.report import Report
from specd.bench.runs import Plan, Run, engine_process, measure
from specd.bench.subject import Subject, find_subject
from specd.bench.synthetic import parse_count
from specd.bench.workload import AUTO, PLAIN, Mode, python_workload
from specd.errors import InvalidRequest
from specd.settings import Settings
from specd.store.facts import read_facts

#: The size of the target where nobody names a model: small for a server, large beside a drafter.
DEFAULT_SIZE = "1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `specd bench` was asked.

    target_size: "" leaves the target as it is, but for the demo pair's, which becomes DEFAULT_SIZE.
    draft_lengths: of the fixed modes.  overhead: plain decoding alone, no drafter needed.
    n_threads: 0 is as many as the daemon would use.
    """

    model: str = ""
    target: Path | None = None
    drafter: Path | None = None
    target_size: str = ""
    n_prompts: int = 8
    n_tokens: int = 96
    temperatures: Sequence[float] = (0.0, 0.8)
    draft_lengths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8)
    overhead: bool = False
    n_threads: int = 0
    n_gpu_layers: int = -1

    @property
    def modes(self) -> tuple[Mode, ...]:
        if self.overhead:
            return (PLAIN,)
        return (PLAIN, *(Mode.fixed(n) for n in self.draft_lengths), AUTO)

    @property
    def plan(self) -> Plan:
        return Plan(
            workload=python_workload().first(self.n_prompts),
            modes=self.modes,
            temperatures=self.temperatures,
            n_tokens=self.n_tokens,
        )

    def subject(self, settings: Settings, on_padding: Callable[[float], None]) -> Subject:
        """The pair; writing a large target may take seconds, `on_padding` hears how far it is."""
        subject = find_subject(self.model, self.target, self.drafter, settings)
        if subject.drafter is None and not self.overhead:
            raise InvalidRequest(
                f"{subject.name} has no drafter: {subject.detail or 'name one with --drafter'}"
            )
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


async def run_bench(
    question: Question,
    subject: Subject,
    settings: Settings,
    on_run: Callable[[Run], None] = lambda _: None,
) -> Report:
    """Load the pair once and run every mode; `on_run` hears each run as it ends.

    Raises LoadFailed, EngineError, InvalidRequest where the engine cannot use the drafter.
    """
    plan, machine, began = question.plan, Machine.read(), datetime.now(UTC).astimezone()
    spec = subject.spec(
        settings,
        n_threads=question.n_threads or machine.n_cores,
        n_gpu_layers=question.n_gpu_layers,
    )
    runs = []
    async with engine_process(spec) as (engine, facts):
        if facts.drafter is None and not question.overhead:
            raise InvalidRequest(f"the engine left the drafter out: {facts.no_pair_detail}")
        async for run in measure(engine, plan):
            runs.append(run)
            on_run(run)
    return Report(
        subject=subject,
        spec=replace(spec, n_ctx=facts.n_ctx),
        engine=facts,
        facts=read_facts(subject.target),
        machine=machine,
        workload=plan.workload.name,
        n_prompts=len(plan.workload.prompts),
        n_tokens=question.n_tokens,
        began=began,
        ended=datetime.now(UTC).astimezone(),
        load_average_after=os.getloadavg()[0],
        runs=runs,
        comparisons=compare(runs),
    )
