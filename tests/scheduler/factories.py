"""Waiters and schedulers for the tests of the pure decisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from specd import core
from specd.placement import Cpu, Defaults, Device
from specd.scheduler import Requirements, Scheduler
from specd.scheduler.effects import Effect, Grant, Place, Start
from specd.scheduler.runner_ref import Waiter

_CPU = Cpu(total_bytes=1, available_bytes=1, n_cores=2)
_GPU = Device(
    vendor="v", index=0, name="n", uuid="u", total_bytes=48 * 2**30, free_bytes=48 * 2**30
)
#: Their automatic contexts are 4096 and 262144 tokens.
SMALL = Defaults(devices=[], cpu=_CPU)
LARGE = Defaults(devices=[_GPU], cpu=_CPU)


def requirements(machine: Defaults = SMALL) -> Requirements:
    return Requirements(fill=machine.fill, min_automatic_ctx=machine.min_ctx)


def waiter(
    waiter_id: int,
    weights: str,
    keep_alive_s: float | None = None,
    n_ctx_train: int = 0,
    **spec: Any,
) -> Waiter:
    model = core.LocalModel(
        name=weights,
        full_name=weights,
        digest="0",
        weights=Path(weights),
        n_ctx_train=n_ctx_train,
    )
    requested = core.EngineSpec(weights=weights, **({"n_ctx": 0} | spec))
    return Waiter(
        id=waiter_id,
        spec=requested,
        model=model,
        pair=core.Pair(target=model),
        keep_alive_s=keep_alive_s,
    )


class Roomy(Scheduler):
    """A scheduler with memory for `n_room` tokens of context, but at least a request's minimum."""

    n_room = 2**62

    def _make_room_for(self, head: Waiter) -> list[Effect]:
        effects = super()._make_room_for(head)
        for effect in effects:
            if isinstance(effect, Place):
                request = effect.request
                n_ctx = max(min(request.spec.n_ctx, self.n_room), request.min_ctx)
                self._placement_query.answer(effect, fits(effect, n_ctx=n_ctx))
                return super()._make_room_for(head)
        return effects


class Narrow(Roomy):
    """A scheduler whose machine has memory for 10,000 tokens of context."""

    n_room = 10_000


def fits(question: Place, **changed: Any) -> core.Placement:
    """Return a placement that fits as requested, or with the `changed` fields of the spec."""
    return core.Placement(spec=replace(question.request.spec, **changed), fits=True)


def full(question: Place) -> core.Placement:
    return core.Placement(spec=question.request.spec, fits=False)


def scheduler(
    max_loaded: int = 3,
    max_queue: int = 512,
    *,
    kind: type[Scheduler] = Roomy,
    machine: Defaults = SMALL,
) -> Scheduler:
    return kind(
        requirements(machine),
        max_loaded=max_loaded,
        max_queue=max_queue,
        default_keep_alive_s=300.0,
    )


def requested(effects: list[Effect]) -> Place:
    [question] = effects
    assert isinstance(question, Place)
    return question


def start_of(effects: list[Effect]) -> Start:
    [start] = effects
    assert isinstance(start, Start)
    return start


def started(effects: list[Effect]) -> int:
    return start_of(effects).runner_id


def load(s: Scheduler, who: Waiter, now: float = 0.0) -> int:
    """Request, load and grant; the runner's id."""
    effects = s.request(who)
    if isinstance(effects[0], Place):
        effects = s.placed(effects[0], fits(effects[0]))
    runner_id = started(effects)
    assert s.loaded(runner_id, now) == [Grant(who.id, runner_id)]
    return runner_id
