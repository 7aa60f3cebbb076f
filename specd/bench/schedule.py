"""What a bench runs, in which order, over which processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from specd import core
from specd.bench.mode import Kind, Mode
from specd.bench.workload import HOSTILE, WORKLOADS, Form, Prompt, Workload, order
from specd.errors import InvalidRequest

#: The workload that several streams at once are said to be.
MIXED = "mixed"
#: A pass of every width and a few drafts: enough to page the weights in.
N_WARM_UP_TOKENS = 16
#: Prompts for the useless drafter, at the least: what it costs is less than one answer's noise.
_N_HOSTILE = 6
#: Of prompts, to guess how long they take; vocabularies differ.
_LETTERS_PER_TOKEN = 3

Render = Callable[[Form, Prompt], str]


@dataclass(frozen=True, slots=True)
class Item:
    """A rendered prompt with the seed that all its runs share."""

    text: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What is asked at once; number: its place among those of its workload."""

    workload: str
    number: int
    repeat: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSet:
    """All runs of one set of processes, an engine and perhaps peers, each with `streams` slots.

    One set per number of streams: a slot that nobody asks for would keep earlier prompts, and
    would be paid for by those who do not use it.  drafters: who may guess, unless a mode says who.
    hostile: the drafter is made useless.
    """

    streams: int
    groups: Sequence[Group]
    warm_up: Sequence[str]
    modes: Sequence[Mode]
    temperatures: Sequence[float]
    n_tokens: int
    drafters: tuple[core.DrafterKind, ...]
    hostile: bool = False

    def __len__(self) -> int:
        return len(self.temperatures) * len(self.groups) * len(self.modes)

    @property
    def peer_modes(self) -> list[Mode]:
        return [mode for mode in self.modes if mode.is_peer]

    def seconds(self, facts: core.EngineFacts) -> float:
        """About how long its runs take, warm-up included, if nobody gained anything by drafting."""
        n_ways = len(self.temperatures) * len(self.modes)
        n_passes = len(self) * self.n_tokens + n_ways * min(self.n_tokens, N_WARM_UP_TOKENS)
        texts = [item.text for group in self.groups for item in group.items]
        n_read = n_ways * sum(map(len, texts)) / _LETTERS_PER_TOKEN
        return n_passes * _pass_s(facts, self.streams) + n_read * _row_s(facts)

    def request(
        self, item: Item, mode: Mode, temperature: float, n_tokens: int
    ) -> core.EngineRequest:
        """A user's request, but for what the mode changes."""
        return mode.applied(
            core.EngineRequest(
                prompt=(item.text,),
                sampling=core.SamplingParams(temperature=temperature, seed=item.seed),
                n_predict=n_tokens,
                shift=False,
                drafters=self.drafters,
            )
        )

    def runs(self) -> Iterator[tuple[Group, Mode, float]]:
        """Every mode on every group at every temperature, the modes of a group close together."""
        for temperature in self.temperatures:
            for group, mode in order(len(self.groups), len(self.modes)):
                yield self.groups[group], self.modes[mode], temperature

    def warm_ups(self) -> Iterator[tuple[Group, Mode, float]]:
        """Every mode once at every temperature, on prompts that do not count."""
        for temperature in self.temperatures:
            for i, mode in enumerate(self.modes):
                texts = (self.warm_up[(i + n) % len(self.warm_up)] for n in range(self.streams))
                items = tuple(Item(text, seed=0) for text in texts)
                yield Group(workload="", number=i, repeat=0, items=items), mode, temperature


def _row_s(facts: core.EngineFacts) -> float:
    """Seconds of one token of a prompt: a row of the widest measured pass."""
    return min((s / width for width, s in facts.costs.target_s), default=0.0)


def _pass_s(facts: core.EngineFacts, n_rows: int) -> float:
    """Seconds of the narrowest measured pass that is wide enough, or of a plain one."""
    enough = [seconds for width, seconds in facts.costs.target_s if width >= n_rows]
    return min(enough, default=1.0 / facts.plain_tokens_per_s)


# --------------------------------------------------------------------------- making one


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """n_prompts: of each workload in each of n_repeats.  streams: each a leg of its own."""

    workloads: Sequence[Workload]
    modes: Sequence[Mode]
    temperatures: Sequence[float]
    n_tokens: int
    n_prompts: int
    drafters: tuple[core.DrafterKind, ...]
    n_repeats: int = 1
    streams: Sequence[int] = (1,)


def make_run_sets(bench_plan: BenchPlan, render: Render) -> Iterator[RunSet]:
    """The hostile leg comes last; it compares plain and auto, ours alone.

    InvalidRequest where the workloads have too few prompts.
    """
    usual = [workload for workload in bench_plan.workloads if workload.name != HOSTILE]
    for streams in bench_plan.streams:
        if usual:
            yield _run_set(bench_plan, usual, streams, render)
    for workload in bench_plan.workloads:
        if workload.name == HOSTILE:
            kept = [mode for mode in bench_plan.modes if mode.kind in {Kind.PLAIN, Kind.AUTO}]
            n_most = len(workload.prompts) // bench_plan.n_repeats
            n_prompts = max(bench_plan.n_prompts, min(_N_HOSTILE, n_most))
            part = replace(bench_plan, modes=kept, n_prompts=n_prompts)
            run_set = _run_set(part, [workload], 1, render)
            yield replace(run_set, hostile=True)


def _run_set(
    bench_plan: BenchPlan, workloads: Sequence[Workload], streams: int, render: Render
) -> RunSet:
    groups = tuple(_groups(bench_plan, workloads, streams, render))
    if len(groups) < 2:
        raise InvalidRequest(
            f"it takes {2 * streams} prompts to ask {streams} at once, so that none meets its own"
            " cache: ask for more prompts or more workloads"
        )
    return RunSet(
        streams=streams,
        groups=groups,
        warm_up=[render(each.form, prompt) for each in workloads for prompt in each.warm_up],
        modes=bench_plan.modes,
        temperatures=bench_plan.temperatures,
        n_tokens=bench_plan.n_tokens,
        drafters=bench_plan.drafters,
    )


def _groups(
    bench_plan: BenchPlan, workloads: Sequence[Workload], streams: int, render: Render
) -> Iterator[Group]:
    """Neighbours are of different workloads, where there are several; a rest is left out."""
    numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
    for repeat in range(bench_plan.n_repeats):
        pool = _pool(bench_plan, workloads, repeat, render)
        for first in range(0, len(pool) - streams + 1, streams):
            members = pool[first : first + streams]
            names = {name for name, _ in members}
            workload = names.pop() if len(names) == 1 else MIXED
            yield Group(
                workload=workload,
                number=next(numbers[workload]),
                repeat=repeat,
                items=tuple(item for _, item in members),
            )


def _pool(
    bench_plan: BenchPlan, workloads: Sequence[Workload], repeat: int, render: Render
) -> list[tuple[str, Item]]:
    """The prompts of one repeat, the workloads taking turns."""
    n = bench_plan.n_prompts
    parts = [workload.part(repeat * n, n) for workload in workloads]
    return [
        (part.name, Item(render(part.form, part.prompts[i]), _seed(part, repeat * n + i)))
        for i in range(n)
        for part in parts
    ]


def _seed(workload: Workload, prompt: int) -> int:
    return 1 + 1000 * WORKLOADS.index(workload.name) + prompt
