"""Waiters and schedulers for the tests of the pure decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specd import core
from specd.placement import Cpu, Defaults, Device
from specd.scheduler.effects import Effect, Grant, Start, Weigh
from specd.scheduler.scheduler import Scheduler, Waiter

_CPU = Cpu(total_bytes=1, available_bytes=1, n_cores=2)
_GPU = Device(
    vendor="v", index=0, name="n", uuid="u", total_bytes=48 * 2**30, free_bytes=48 * 2**30
)
#: Their automatic contexts are 4096 and 262144 tokens.
SMALL = Defaults(devices=[], cpu=_CPU)
LARGE = Defaults(devices=[_GPU], cpu=_CPU)


def waiter(waiter_id: int, weights: str, keep_alive_s: float | None = None, **spec: Any) -> Waiter:
    model = core.ModelRef(name=weights, full_name=weights, digest="0", weights=Path(weights))
    asked = core.EngineSpec(weights=weights, **({"n_ctx": 0} | spec))
    return Waiter(
        id=waiter_id,
        spec=asked,
        model=model,
        pair=core.Pair(target=model),
        keep_alive_s=keep_alive_s,
    )


class Roomy(Scheduler):
    """Of endless memory: it is never asked for."""

    def _make_way_for(self, head: Waiter) -> list[Effect]:
        effects = super()._make_way_for(head)
        if not any(isinstance(effect, Weigh) for effect in effects):
            return effects
        self._fits = True
        return super()._make_way_for(head)


def scheduler(
    max_loaded: int = 3,
    max_queue: int = 512,
    *,
    kind: type[Scheduler] = Roomy,
    machine: Defaults = SMALL,
) -> Scheduler:
    return kind(
        fill=machine.fill,
        less_ctx=machine.less_ctx,
        max_loaded=max_loaded,
        max_queue=max_queue,
        default_keep_alive_s=300.0,
    )


def started(effects: list[Effect]) -> int:
    [start] = effects
    assert isinstance(start, Start)
    return start.runner_id


def load(s: Scheduler, who: Waiter, now: float = 0.0) -> int:
    """Request, load and grant; the runner's id."""
    runner_id = started(s.request(who))
    assert s.loaded(runner_id, now) == [Grant(who.id, runner_id)]
    return runner_id
