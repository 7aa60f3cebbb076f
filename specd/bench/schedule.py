"""The runs of a bench, their order and the processes that they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from specd import core
from specd.bench.mode import Kind, Mode
from specd.bench.workload import HOSTILE, WORKLOADS, Form, Prompt, Workload
from specd.errors import InvalidRequest

#: The workload name of a group with prompts of several workloads.
MIXED = "mixed"
#: Tokens of a warm-up answer: enough to page in the weights.
N_WARM_UP_TOKENS = 16
#: Least number of prompts for the useless drafter: its cost is below the noise of one answer.
_N_HOSTILE = 6
#: Estimates the tokens of a prompt from its length; vocabularies differ.
_LETTERS_PER_TOKEN = 3

Render = Callable[[Form, Prompt], str]


@dataclass(frozen=True, slots=True)
class Item:
    """A rendered prompt with the seed that all its runs share."""

    text: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Prompts that are sent at once.  number: its index among the groups of its workload."""

    workload: str
    number: int
    repeat: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSet:
    """All runs of one set of processes: an engine and any peers, each with `streams` slots.

    Each number of streams has its own set, since an idle slot keeps earlier prompts and costs
    time.  drafters: the kinds that may draft, unless a mode names them.
    hostile: whether the drafter is made useless.
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
        """Estimate the seconds of all runs, warm-up included, as if drafting gained nothing."""
        n_ways = len(self.temperatures) * len(self.modes)
        n_passes = len(self) * self.n_tokens + n_ways * min(self.n_tokens, N_WARM_UP_TOKENS)
        texts = [item.text for group in self.groups for item in group.items]
        n_read = n_ways * sum(map(len, texts)) / _LETTERS_PER_TOKEN
        return n_passes * _pass_s(facts, self.streams) + n_read * _row_s(facts)

    def request(
        self, item: Item, mode: Mode, temperature: float, n_tokens: int
    ) -> core.EngineRequest:
        """Return a user's request with the changes of the mode."""
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
        """Yield every mode on every group at every temperature, a group's modes close in time."""
        for temperature in self.temperatures:
            for group, mode in order(len(self.groups), len(self.modes)):
                yield self.groups[group], self.modes[mode], temperature

    def warm_ups(self) -> Iterator[tuple[Group, Mode, float]]:
        """Yield every mode once at every temperature, on prompts of their own."""
        for temperature in self.temperatures:
            for i, mode in enumerate(self.modes):
                texts = (self.warm_up[(i + n) % len(self.warm_up)] for n in range(self.streams))
                items = tuple(Item(text, seed=0) for text in texts)
                yield Group(workload="", number=i, repeat=0, items=items), mode, temperature


def order(n_prompts: int, n_modes: int) -> Iterator[tuple[int, int]]:
    """Yield (prompt, mode), each combination once.

    Prompts alternate in twos, so that no prompt finds itself in the cache and its modes run close
    in time.  Each two begin with another mode.
    """
    groups = [[i, i + 1] for i in range(0, n_prompts - 1, 2)] or [[0]]
    if n_prompts % 2 and n_prompts > 1:
        groups[-1].append(n_prompts - 1)
    for number, group in enumerate(groups):
        first = number * n_modes // len(groups)
        for turn in range(n_modes):
            for place, prompt in enumerate(group):
                yield prompt, (first + turn + place) % n_modes


def _row_s(facts: core.EngineFacts) -> float:
    """Return the seconds of one prompt token: a row of the widest measured pass."""
    return min((s / width for width, s in facts.costs.target_s), default=0.0)


def _pass_s(facts: core.EngineFacts, n_rows: int) -> float:
    """Return the seconds of the narrowest measured pass with n_rows, or of a plain one."""
    enough = [seconds for width, seconds in facts.costs.target_s if width >= n_rows]
    return min(enough, default=1.0 / facts.plain_tokens_per_s)


# --------------------------------------------------------------------------- making one


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """The workloads, modes and sizes of a bench.

    n_prompts: of each workload in each of n_repeats.  streams: each value has its own run set.
    """

    workloads: Sequence[Workload]
    modes: Sequence[Mode]
    temperatures: Sequence[float]
    n_tokens: int
    n_prompts: int
    drafters: tuple[core.DrafterKind, ...]
    n_repeats: int = 1
    streams: Sequence[int] = (1,)


def make_run_sets(bench_plan: BenchPlan, render: Render) -> Iterator[RunSet]:
    """Yield the run sets.  The hostile one comes last, with specd's plain and auto alone.

    Raises InvalidRequest where the workloads have too few prompts.
    """
    usual = [workload for workload in bench_plan.workloads if workload.name != HOSTILE]
    for streams in bench_plan.streams:
        if usual:
            yield _run_set(bench_plan, usual, streams, render)
    for workload in bench_plan.workloads:
        if workload.name == HOSTILE:
            modes = [mode for mode in bench_plan.modes if mode.kind in {Kind.PLAIN, Kind.AUTO}]
            n_most = len(workload.prompts) // bench_plan.n_repeats
            n_prompts = max(bench_plan.n_prompts, min(_N_HOSTILE, n_most))
            part = replace(bench_plan, modes=modes, n_prompts=n_prompts)
            run_set = _run_set(part, [workload], 1, render)
            yield replace(run_set, hostile=True)


def _run_set(
    bench_plan: BenchPlan, workloads: Sequence[Workload], streams: int, render: Render
) -> RunSet:
    groups = tuple(_groups(bench_plan, workloads, streams, render))
    if len(groups) < 2:
        raise InvalidRequest(
            f"it takes {2 * streams} prompts to ask {streams} at once, so that no prompt is in the"
            " cache: raise --prompts or name more workloads"
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
    """Yield groups of `streams` prompts, the workloads in turn; an incomplete group is dropped."""
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
    """Return (workload, item) of one repeat, the workloads in turn."""
    n = bench_plan.n_prompts
    parts = [workload.part(repeat * n, n) for workload in workloads]
    return [
        (part.name, Item(render(part.form, part.prompts[i]), _seed(part, repeat * n + i)))
        for i in range(n)
        for part in parts
    ]


def _seed(workload: Workload, prompt: int) -> int:
    return 1 + 1000 * WORKLOADS.index(workload.name) + prompt
