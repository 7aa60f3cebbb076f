"""Check that the text is the same with and without speculation, token by token."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import islice

from specd import core
from specd.bench.measure import Engine, ask, engine_process
from specd.bench.mode import AUTO, PLAIN, Mode
from specd.bench.subject import Subject
from specd.bench.workload import WORKLOADS, Renderer, load_workload

TEMPERATURES = (0.0, 0.8)
_N_ENGINES = 2
_N_CTX = 1024
#: Excerpts of these modules follow the workloads' prompts.
_MODULES = ("argparse", "ast", "configparser", "csv", "difflib", "heapq", "inspect", "textwrap")
_CUT = 320


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputEquality:
    """The result for one temperature.  different: numbers of the prompts with different answers.

    n_tokens: of the plain answers.  n_drafted, n_accepted: of all answers with speculation.
    """

    temperature: float
    n_prompts: int
    n_same: int
    n_tokens: int
    n_drafted: int
    n_accepted: int
    different: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Case:
    number: int
    text: str
    temperature: float


@dataclass(frozen=True, slots=True)
class _Outcome:
    case: _Case
    is_same: bool
    n_tokens: int
    n_drafted: int
    n_accepted: int


async def sameness(
    subject: Subject, n_prompts: int, n_tokens: int, on_step: Callable[[], None] = lambda: None
) -> list[OutputEquality]:
    """Answer every prompt three times with one seed: plain, with drafts of 1 to 8 tokens, and auto.

    The engines run where a row of a pass does not depend on the pass's width: on the CPU, with
    flash attention and one slot.  Prompts are wider than such a pass, so each is read once before;
    all three answers then start from the same cache.  Prompts alternate between the temperatures.

    Raises LoadFailed, EngineError.
    """
    texts = list(islice(prompts(Renderer.of(subject.target)), n_prompts))
    cases = [_Case(i, text, TEMPERATURES[i % 2]) for i, text in enumerate(texts)]
    outcomes: list[_Outcome] = []
    waiting = iter(cases)

    async def work(engine: Engine) -> None:
        for case in waiting:
            outcomes.append(await _outcome(engine, case, n_tokens))
            on_step()

    async with AsyncExitStack() as stack:
        engines = [
            (await stack.enter_async_context(engine_process(_spec(subject))))[0]
            for _ in range(_N_ENGINES)
        ]
        async with asyncio.TaskGroup() as tasks:
            for engine in engines:
                tasks.create_task(work(engine))
    return [_summary(temperature, outcomes) for temperature in TEMPERATURES]


def _spec(subject: Subject) -> core.EngineSpec:
    return core.EngineSpec(
        weights=str(subject.target),
        drafter=str(subject.drafter) if subject.drafter else None,
        n_ctx=_N_CTX,
        n_gpu_layers=0,
        n_threads=1,
        flash_attention=True,
    )


async def _outcome(engine: Engine, case: _Case, n_tokens: int) -> _Outcome:
    plain = core.EngineRequest(
        prompt=(case.text,),
        sampling=core.SamplingParams(temperature=case.temperature, seed=case.number),
        n_predict=n_tokens,
        shift=False,
        want_context=True,
    )
    await ask(engine, replace(PLAIN.applied(plain), n_predict=1))
    asked = [PLAIN, Mode.fixed(1 + case.number // 2 % 8), AUTO]
    without, *drafted = [(await ask(engine, mode.applied(plain))).done for mode in asked]
    return _Outcome(
        case,
        is_same=all(
            (each.context, each.reason) == (without.context, without.reason) for each in drafted
        ),
        n_tokens=without.usage.n_generated,
        n_drafted=sum(each.speculation.draft_n for each in drafted),
        n_accepted=sum(each.speculation.draft_n_accepted for each in drafted),
    )


def _summary(temperature: float, outcomes: Sequence[_Outcome]) -> OutputEquality:
    of_it = [each for each in outcomes if each.case.temperature == temperature]
    return OutputEquality(
        temperature=temperature,
        n_prompts=len(of_it),
        n_same=sum(each.is_same for each in of_it),
        n_tokens=sum(each.n_tokens for each in of_it),
        n_drafted=sum(each.n_drafted for each in of_it),
        n_accepted=sum(each.n_accepted for each in of_it),
        different=tuple(sorted(each.case.number for each in of_it if not each.is_same)),
    )


def prompts(renderer: Renderer) -> Iterator[str]:
    """Yield the workloads' prompts, then excerpts of the standard library; all different."""
    for workload in map(load_workload, WORKLOADS):
        for prompt in workload.prompts:
            yield renderer.render(workload.form, prompt)
    for name in _MODULES:
        source = inspect.getsource(importlib.import_module(name))
        yield from (source[i : i + _CUT] for i in range(0, len(source) - _CUT, 4 * _CUT))
