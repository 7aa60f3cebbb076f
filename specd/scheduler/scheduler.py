"""Which models are resident, who waits and who leaves: pure decisions.

Events in, effects out, time as an argument; `loop.py` acts.  The rules are Ollama's: one load at a
time, the head of the queue blocks those behind it, who asks for a loaded model does not queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from specd import core, errors
from specd.scheduler.effects import Effect, Grant, Refuse, Start, Stop, Weigh


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """Someone who wants the right to use a model.

    spec: as asked for; n_ctx 0 is automatic.  keep_alive_s None keeps the runner's value.
    """

    id: int
    spec: core.EngineSpec
    model: core.ModelRef
    pair: core.Pair
    keep_alive_s: float | None = None


# --------------------------------------------------------------------------- state


class Phase(StrEnum):
    LOADING = "loading"
    LOADED = "loaded"
    LEAVING = "leaving"  # told to stop; its memory is not free before it has ended


@dataclass(slots=True, kw_only=True)
class Runner:
    """One resident model.  expires_at: end of the last use + keep_alive_s; holds while idle.

    chose_ctx: its context is longer than anybody asked for, and may be shortened.
    """

    id: int
    spec: core.EngineSpec
    model: core.ModelRef
    pair: core.Pair
    keep_alive_s: float
    phase: Phase = Phase.LOADING
    expires_at: float = math.inf
    users: set[int] = field(default_factory=set)
    chose_ctx: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How a model that found no memory is tried again.  n_ctx: where it is automatic."""

    n_ctx: int = 0
    alone: bool = False


def _what_loads(spec: core.EngineSpec) -> core.EngineSpec:
    """`spec` without what is only said about it."""
    return replace(spec, drafter_name="", pair_source="", no_pair_reason="", no_pair_detail="")


Fill = Callable[[core.EngineSpec, int], core.EngineSpec]
LessCtx = Callable[[int], int | None]


class Scheduler:
    """fill: decides what a spec leaves open (`placement.Defaults.fill`).

    less_ctx: the next shorter context to try, if any (`placement.Defaults.less_ctx`).

    Every method is one event and returns what must be done about it, in order.
    """

    def __init__(
        self,
        *,
        fill: Fill,
        less_ctx: LessCtx,
        max_loaded: int,
        max_queue: int,
        default_keep_alive_s: float,
    ) -> None:
        self._fill = fill
        self._less_ctx = less_ctx
        self._max_loaded = max_loaded
        self._max_queue = max_queue
        self._default_keep_alive_s = default_keep_alive_s
        self._runners: dict[str, Runner] = {}  # by the target's weights
        self._queue: list[Waiter] = []
        self._in_the_way: int | None = None  # the runner that the head waits to see leave
        self._question: Weigh | None = None
        self._fits: bool | None = None  # the answer; None while it is awaited
        self._retries: dict[str, Retry] = {}  # by the target's weights
        self._n_started = 0
        self._shutting_down = False

    # ----------------------------------------------------------------------- events

    def request(self, waiter: Waiter) -> list[Effect]:
        """(1) shutting down: refuse.  (2) loaded and compatible: grant.  (3) queue, or 503."""
        if self._shutting_down:
            return [Refuse(waiter.id, errors.ShuttingDown("server is shutting down"))]
        if (runner := self._serving(waiter)) is not None:
            return [self._grant(waiter, runner)]
        # The head is being served, as far as that goes: it does not count as pending.
        if len(self._queue) > self._max_queue:
            return [Refuse(waiter.id, errors.QueueFull())]
        self._queue.append(waiter)
        return self._advance()

    def leave(self, waiter_id: int, now: float) -> list[Effect]:
        """Its use is over, or it stops waiting."""
        self._queue = [waiter for waiter in self._queue if waiter.id != waiter_id]
        for runner in self._runners.values():
            if waiter_id in runner.users:
                runner.users.remove(waiter_id)
                if not runner.users:
                    runner.expires_at = now + runner.keep_alive_s
        return self._expire(now) + self._advance()

    def loaded(self, runner_id: int, now: float) -> list[Effect]:
        """All who waited for this very load get it, wherever in the queue they are."""
        runner = self._by_id(runner_id)
        if runner is None or runner.phase is not Phase.LOADING:
            return []
        runner.phase = Phase.LOADED
        runner.expires_at = now + runner.keep_alive_s
        self._retries.pop(runner.spec.weights, None)
        granted = self._take_from_queue(runner)
        return [*(self._grant(w, runner) for w in granted), *self._advance()]

    def failed(self, runner_id: int, error: errors.SpecdError) -> list[Effect]:
        """The load failed: all who waited for this very load are told; `ended` follows.

        Where memory was short they wait on, while there is something to give up.
        """
        runner = self._by_id(runner_id)
        if runner is None or runner.phase is not Phase.LOADING:
            return []
        runner.phase = Phase.LEAVING
        weights = runner.spec.weights
        if isinstance(error, errors.OutOfMemory) and (retry := self._retry(runner)):
            self._retries[weights] = retry
            return self._advance()
        self._retries.pop(weights, None)
        told = self._take_from_queue(runner)
        return [*(Refuse(waiter.id, error) for waiter in told), *self._advance()]

    def ended(self, runner_id: int) -> list[Effect]:
        """The process is gone, told to or not; the next request loads the model again."""
        runner = self._by_id(runner_id)
        if runner is not None:
            del self._runners[runner.spec.weights]
        return self._advance()

    def weighed(self, question: Weigh, *, fits: bool) -> list[Effect]:
        """The answer to a Weigh; one that is not asked any more is dropped."""
        if question == self._question:
            self._fits = fits
        return self._advance()

    def tick(self, now: float) -> list[Effect]:
        return self._expire(now) + self._advance()

    def unload(self, weights: str, now: float) -> list[Effect]:
        """Let a model go as soon as nobody uses it; those who wait for it still get it once."""
        runner = self._runners.get(weights)
        if runner is None:
            return []
        runner.keep_alive_s = 0.0
        if not runner.users and runner.phase is Phase.LOADED:
            runner.expires_at = now
        return self._expire(now) + self._advance()

    def close(self, now: float) -> list[Effect]:
        """Refuse who waits and who comes; an engine leaves when its last user has."""
        self._shutting_down = True
        error = errors.ShuttingDown("server is shutting down")
        refused = [Refuse(waiter.id, error) for waiter in self._queue]
        self._queue.clear()
        for runner in self._runners.values():
            runner.keep_alive_s = 0.0
            if self._idle(runner):
                runner.expires_at = now
        return [*refused, *self._expire(now), *self._advance()]

    def shutdown(self, now: float) -> list[Effect]:
        """`close`, and every engine stops, used or not."""
        closed = self.close(now)
        used = [r for r in self._runners.values() if r.phase is not Phase.LEAVING]
        return [*closed, *(self._stop(runner) for runner in used)]

    # ----------------------------------------------------------------------- questions

    def next_expiry(self) -> float:
        """When `tick` is due; inf for never."""
        return min(
            (r.expires_at for r in self._runners.values() if self._idle(r)), default=math.inf
        )

    def runners(self) -> list[Runner]:
        return list(self._runners.values())

    def waiting(self) -> list[Waiter]:
        return list(self._queue)

    # ----------------------------------------------------------------------- decisions

    def _advance(self) -> list[Effect]:
        """Serve the queue from its head; then those behind it whose model is there anyway."""
        effects: list[Effect] = self._abort_load_for_nobody()
        self._in_the_way = None
        wanted = {waiter.spec.weights for waiter in self._queue}
        self._retries = {w: retry for w, retry in self._retries.items() if w in wanted}
        while self._queue:
            if (runner := self._serving(self._queue[0])) is None:
                effects += self._make_way_for(self._queue[0])
                break
            effects.append(self._grant(self._queue.pop(0), runner))
        for waiter in list(self._queue):
            if (runner := self._serving(waiter)) is not None:
                self._queue.remove(waiter)
                effects.append(self._grant(waiter, runner))
        return effects

    def _make_way_for(self, head: Waiter) -> list[Effect]:
        """(1) a load is under way: wait.  (2) its model is loaded otherwise: that must leave.
        (3) nobody is there: load, it may fit or not.  (4) too many, or too little memory, which
        is asked for: the idle one with the shortest session leaves, else wait.  (5) load.
        """
        runners = self._runners.values()
        if any(runner.phase is Phase.LOADING for runner in runners):
            return []
        obstacle = self._runners.get(head.spec.weights)
        if obstacle is None:
            if not runners:
                return [self._start(head)]
            crowded = len(runners) >= self._max_loaded or self._retry_of(head).alone
            question = Weigh(head.id, self._filled(head), tuple(r.spec for r in runners))
            if not crowded and question != self._question:
                self._question, self._fits = question, None
                return [question]
            if not crowded and self._fits is not False:
                return [self._start(head)] if self._fits else []
            obstacle = min(runners, key=_first_to_leave)
        if self._idle(obstacle):
            return [self._stop(obstacle)]
        # Busy: no new users for it, or the head might wait for ever.
        self._in_the_way = obstacle.id
        return []

    def _serving(self, waiter: Waiter) -> Runner | None:
        runner = self._runners.get(waiter.spec.weights)
        if runner is None or runner.id == self._in_the_way:
            return None
        return runner if runner.phase is Phase.LOADED and self._wants(waiter, runner) else None

    def _wants(self, waiter: Waiter, runner: Runner) -> bool:
        """Whether `runner` is, or will be, what the waiter asks for.

        What it leaves automatic takes what is there, and so never forces a reload.
        """
        spec, there = waiter.spec, runner.spec
        asked = replace(
            spec,
            n_ctx=spec.n_ctx or there.n_ctx,
            n_gpu_layers=there.n_gpu_layers if spec.n_gpu_layers < 0 else spec.n_gpu_layers,
        )
        return _what_loads(self._fill(asked, waiter.model.n_ctx_train)) == _what_loads(there)

    def _abort_load_for_nobody(self) -> list[Effect]:
        return [
            self._stop(runner)
            for runner in self._runners.values()
            if runner.phase is Phase.LOADING
            and not any(self._wants(waiter, runner) for waiter in self._queue)
        ]

    def _expire(self, now: float) -> list[Effect]:
        return [
            self._stop(runner)
            for runner in self._runners.values()
            if self._idle(runner) and runner.expires_at <= now
        ]

    def _retry(self, runner: Runner) -> Retry | None:
        """What to give up next for a runner that found no memory: its context, then the others."""
        before = self._retries.get(runner.spec.weights, Retry())
        if runner.chose_ctx and (n_ctx := self._less_ctx(runner.spec.n_ctx)):
            return replace(before, n_ctx=n_ctx)
        return replace(before, alone=True) if len(self._runners) > 1 else None

    def _retry_of(self, waiter: Waiter) -> Retry:
        return self._retries.get(waiter.spec.weights, Retry())

    def _filled(self, waiter: Waiter) -> core.EngineSpec:
        n_ctx = waiter.spec.n_ctx or self._retry_of(waiter).n_ctx
        return self._fill(replace(waiter.spec, n_ctx=n_ctx), waiter.model.n_ctx_train)

    # ----------------------------------------------------------------------- steps

    def _start(self, waiter: Waiter) -> Effect:
        self._question = None
        keep_alive_s = waiter.keep_alive_s
        if keep_alive_s is None:
            keep_alive_s = self._default_keep_alive_s
        self._n_started += 1
        runner = Runner(
            id=self._n_started,
            spec=self._filled(waiter),
            model=waiter.model,
            pair=waiter.pair,
            keep_alive_s=keep_alive_s,
            chose_ctx=waiter.spec.n_ctx == 0,
        )
        self._runners[waiter.spec.weights] = runner
        return Start(runner.id, runner.spec)

    def _stop(self, runner: Runner) -> Effect:
        runner.phase = Phase.LEAVING
        return Stop(runner.id)

    def _grant(self, waiter: Waiter, runner: Runner) -> Effect:
        if waiter.keep_alive_s is not None:
            runner.keep_alive_s = waiter.keep_alive_s
        runner.users.add(waiter.id)
        return Grant(waiter.id, runner.id)

    def _take_from_queue(self, runner: Runner) -> list[Waiter]:
        taken = [waiter for waiter in self._queue if self._wants(waiter, runner)]
        self._queue = [waiter for waiter in self._queue if not self._wants(waiter, runner)]
        return taken

    def _idle(self, runner: Runner) -> bool:
        return runner.phase is Phase.LOADED and not runner.users

    def _by_id(self, runner_id: int) -> Runner | None:
        return next((r for r in self._runners.values() if r.id == runner_id), None)


def _first_to_leave(runner: Runner) -> tuple[bool, bool, float, str]:
    """One that leaves already, then an idle one, then the shortest session (Ollama's order)."""
    leaving = runner.phase is Phase.LEAVING
    return not leaving, bool(runner.users), runner.keep_alive_s, runner.spec.weights
