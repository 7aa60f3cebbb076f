"""Decides which models are loaded and unloaded, and which requests wait; pure, without I/O.

Takes events and returns effects, with the time as an argument; `loop.py` carries them out.  The
rules are Ollama's: one load at a time, the head of the queue blocks the waiters behind it, and a
request for a loaded model does not queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from specd import core, errors
from specd.scheduler.effects import Effect, Grant, Place, Refuse, Start, Stop, UnloadReason
from specd.scheduler.placement_query import PlacementQuery, RefusedLoad
from specd.scheduler.requirements import Requirements
from specd.scheduler.runner_ref import RunnerPhase, RunnerRef, Waiter
from specd.scheduler.wait_queue import WaitQueue


class Scheduler:
    """The loaded models and the queue.  Each event method returns the effects to carry out."""

    def __init__(
        self,
        requirements: Requirements,
        *,
        max_loaded: int,
        max_queue: int,
        default_keep_alive_s: float,
    ) -> None:
        self._requirements = requirements
        self._max_loaded = max_loaded
        self._max_queue = max_queue
        self._default_keep_alive_s = default_keep_alive_s
        self._runners: dict[str, RunnerRef] = {}  # by the model's key, as the next three
        self._refused: dict[str, RefusedLoad] = {}
        self._outgrown_ctx: dict[str, int] = {}  # the context that was too short, before a reload
        self._automatic: dict[str, int] = {}  # `RunnerRef.automatic_ctx`, during a reload
        self._queue = WaitQueue()
        self._offered_ids: set[int] = set()  # runners already compared with all waiters
        self._draining_id: int | None = None  # the runner that the head waits to be unloaded
        self._placement_query = PlacementQuery()
        self._n_started = 0
        self._shutting_down = False

    # ----------------------------------------------------------------------- events

    def request(self, waiter: Waiter) -> list[Effect]:
        """Grant, queue, or refuse a request: refuse on shutdown and if the queue is full."""
        if self._shutting_down:
            return [Refuse(waiter.id, errors.ShuttingDown("server is shutting down"))]
        if (runner := self._compatible_runner(waiter)) is not None:
            return [self._grant(waiter, runner)]
        # The head is already being served, so it does not count as pending.
        if self._queue.n_competing(waiter) > self._max_queue:
            return [Refuse(waiter.id, errors.QueueFull())]
        self._queue.append(waiter)
        return self._advance()

    def release(self, waiter_id: int, now: float) -> list[Effect]:
        """End a waiter's lease, or its wait."""
        self._queue.remove(waiter_id)
        for runner in self._runners.values():
            if waiter_id in runner.users:
                runner.users.remove(waiter_id)
                if not runner.users:
                    runner.expires_at = now + runner.keep_alive_s
        return self._expire(now) + self._advance()

    def placed(self, question: Place, placement: core.Placement) -> list[Effect]:
        """Take the answer to a Place."""
        self._placement_query.answer(question, placement)
        return self._advance()

    def placement_failed(self, question: Place, error: errors.SpecdError) -> list[Effect]:
        """Refuse the waiter: no placement is possible, even if other models are unloaded."""
        is_waiting = self._queue.get(question.waiter_id) is not None
        self._queue.remove(question.waiter_id)
        return [*([Refuse(question.waiter_id, error)] if is_waiting else []), *self._advance()]

    def loaded(self, runner_id: int, now: float) -> list[Effect]:
        """Mark a runner as loaded; grant it to all compatible waiters, anywhere in the queue."""
        runner = self.runner(runner_id)
        if runner is None or runner.phase is not RunnerPhase.LOADING:
            return []
        runner.phase = RunnerPhase.LOADED
        runner.expires_at = now + runner.keep_alive_s
        self._refused.pop(runner.key, None)
        self._outgrown_ctx.pop(runner.key, None)
        granted = self._queue.take(
            runner.key, lambda waiter: self._requirements.is_compatible(waiter, runner)
        )
        return [*(self._grant(waiter, runner) for waiter in granted), *self._advance()]

    def failed(self, runner_id: int, error: errors.SpecdError) -> list[Effect]:
        """Refuse all waiters that this load was for; `ended` follows.

        If memory was short they wait on, as long as there is something to give up.
        """
        runner = self.runner(runner_id)
        if runner is None or runner.phase is not RunnerPhase.LOADING:
            return []
        runner.phase = RunnerPhase.UNLOADING
        self._outgrown_ctx.pop(runner.key, None)
        if runner.is_local and isinstance(error, errors.OutOfMemory):
            return [*self._load_ran_out_of_memory(runner, error), *self._advance()]
        refused_waiters = self._queue.take(
            runner.key, lambda waiter: self._requirements.is_compatible(waiter, runner)
        )
        return [*(Refuse(waiter.id, error) for waiter in refused_waiters), *self._advance()]

    def ended(self, runner_id: int) -> list[Effect]:
        """Remove a runner whose engine has ended; the next request loads the model again."""
        runner = self.runner(runner_id)
        if runner is not None:
            del self._runners[runner.key]
            self._automatic[runner.key] = runner.automatic_ctx
        return self._advance()

    def ran_out_of_memory(self, now: float) -> list[Effect]:
        """Unload all idle models, since an engine ran out of memory during an answer."""
        idle = [runner for runner in self._local_runners() if runner.is_idle]
        for runner in idle:
            runner.expires_at = now
        return [*(self._stop(runner, UnloadReason.EVICTED) for runner in idle), *self._advance()]

    def tick(self, now: float) -> list[Effect]:
        return self._expire(now) + self._advance()

    def unload(self, key: str, now: float) -> list[Effect]:
        """Unload a model as soon as it is idle; requests that already wait for it still get it."""
        runner = self._runners.get(key)
        if runner is None:
            return []
        runner.keep_alive_s = 0.0
        if runner.is_idle:
            runner.expires_at = now
        return self._expire(now) + self._advance()

    def adjust(self, *, max_queue: int, default_keep_alive_s: float) -> list[Effect]:
        """Change settings for later requests; waiters and loaded models are not affected."""
        self._max_queue = max_queue
        self._default_keep_alive_s = default_keep_alive_s
        return []

    def close(self, now: float) -> list[Effect]:
        """Refuse all waiters and all later requests; stop each engine once it is idle."""
        self._shutting_down = True
        error = errors.ShuttingDown("server is shutting down")
        refused = [Refuse(waiter.id, error) for waiter in self._queue]
        self._queue.clear()
        for runner in self._runners.values():
            runner.keep_alive_s = 0.0
            if runner.is_idle:
                runner.expires_at = now
        return [*refused, *self._expire(now), *self._advance()]

    def shutdown(self, now: float) -> list[Effect]:
        """Do as `close`, and stop every engine, in use or not."""
        closed = self.close(now)
        used = [r for r in self._runners.values() if r.phase is not RunnerPhase.UNLOADING]
        return [*closed, *(self._stop(runner, UnloadReason.SHUTDOWN) for runner in used)]

    def next_expiry(self) -> float:
        """Return the time when `tick` is due; inf for never."""
        return min((r.expires_at for r in self._runners.values() if r.is_idle), default=math.inf)

    def runner(self, runner_id: int) -> RunnerRef | None:
        return next((r for r in self._runners.values() if r.id == runner_id), None)

    def runners(self) -> list[RunnerRef]:
        return list(self._runners.values())

    def waiting(self) -> list[Waiter]:
        return list(self._queue)

    # ----------------------------------------------------------------------- decisions

    def _advance(self) -> list[Effect]:
        """Serve the queue from its head, then the waiters behind it whose model is loaded."""
        effects = self._abort_unneeded_loads() + self._start_upstream()
        self._draining_id = None
        self._drop_stale_state()
        while (head := self._queue.head) is not None:
            if (runner := self._compatible_runner(head)) is not None:
                self._queue.remove(head.id)
                effects.append(self._grant(head, runner))
                continue
            effects += self._make_room_for(head)
            if self._queue.head is head:
                break
        return effects + self._grant_compatible()

    def _grant_compatible(self) -> list[Effect]:
        """Grant each newly available model to all compatible waiters.

        Later requests for it are granted on arrival.
        """
        effects: list[Effect] = []
        serving = [runner for runner in self._runners.values() if self._is_open(runner)]
        for runner in serving:
            if runner.id in self._offered_ids:
                continue
            for waiter in list(self._queue.of(runner.key)):
                if self._requirements.is_compatible(waiter, runner):
                    self._queue.remove(waiter.id)
                    effects.append(self._grant(waiter, runner))
        self._offered_ids = {runner.id for runner in serving}
        return effects

    def _make_room_for(self, head: Waiter) -> list[Effect]:
        """Return the next step towards loading the head's model.

        1. A load is running: wait.
        2. The model is loaded with other settings: unload it.
        3. Too many models are loaded: unload the first in eviction order.
        4. Memory was refused next to other models: unload the idle ones, in the end all.
        5. Find a placement.
        """
        others = sorted(self._local_runners(), key=lambda runner: runner.eviction_order)
        if any(runner.phase is RunnerPhase.LOADING for runner in others):
            return []
        if (there := self._runners.get(head.key)) is not None:
            if there.is_idle and self._requirements.needs_longer_context(head, there):
                self._outgrown_ctx[head.key] = there.local_spec.n_ctx
            return self._evict(there)
        refused = self._refused.get(head.key)
        if others and len(others) >= self._max_loaded:
            return self._evict(others[0])
        if others and refused is not None and (refused.must_load_alone or not others[0].users):
            idle = [self._stop(other, UnloadReason.EVICTED) for other in others if other.is_idle]
            return idle or self._evict(others[0])
        return self._place_waiter(head, others)

    def _place_waiter(self, head: Waiter, others: Sequence[RunnerRef]) -> list[Effect]:
        """Find a placement for the head and start it, or evict.  others: in eviction order."""
        question = self._question(head, others)
        request, refused = question.request, self._refused.get(head.key)
        effects = self._placement_query.ask(question)
        if (placement := self._placement_query.placement) is not None:
            costs_drafter = request.spec.drafter is not None and placement.spec.drafter is None
            if costs_drafter and self._outgrown_ctx.pop(head.key, None) is not None:
                # A context longer than requested is not worth the drafter.
                return [*effects, *self._place_waiter(head, others)]
            if refused is None or not refused.would_repeat(placement.spec, others):
                return [self._start_placed(head, request, placement)]
            if not others:
                return self._give_up(refused, head)
        elif not self._placement_query.must_evict:
            return effects
        elif self._outgrown_ctx.pop(head.key, None) is not None:
            # The longer context is the first thing to give up.
            return [*effects, *self._place_waiter(head, others)]
        return [*effects, *self._evict(others[0])]

    def _question(self, head: Waiter, others: Sequence[RunnerRef]) -> Place:
        refused, outgrown = self._refused.get(head.key), self._outgrown_ctx.get(head.key)
        spec = self._requirements.filled_spec(head)
        give_up = core.GiveUp.NOTHING
        if (
            outgrown is not None
            and (grown_spec := self._requirements.grown_spec(head, outgrown)) != spec
        ):
            spec = grown_spec
        elif not others:
            give_up = core.GiveUp.ANYTHING
        elif all(other.users for other in others):
            give_up = core.GiveUp.DRAFTER
        request = core.PlacementRequest(
            spec=spec,
            min_ctx=self._requirements.min_ctx(head),
            residents=tuple(runner.local_spec for runner in self._local_runners()),
            give_up=give_up,
            n_refusals=refused.n if refused is not None else 0,
            n_refused_alone=refused.n_refused_alone if refused is not None else 0,
            name=head.model.name,
        )
        return Place(head.id, request)

    def _compatible_runner(self, waiter: Waiter) -> RunnerRef | None:
        runner = self._runners.get(waiter.key)
        if runner is None or not self._is_open(runner):
            return None
        return runner if self._requirements.is_compatible(waiter, runner) else None

    def _is_open(self, runner: RunnerRef) -> bool:
        return runner.phase is RunnerPhase.LOADED and runner.id != self._draining_id

    def _local_runners(self) -> list[RunnerRef]:
        return [runner for runner in self._runners.values() if runner.is_local]

    def _start_upstream(self) -> list[Effect]:
        """Start the engines of upstream models, which wait for no other load and no memory."""
        return [
            self._start(waiter, waiter.spec)
            for waiter in self._queue.upstream_heads()
            if waiter.key not in self._runners
        ]

    def _abort_unneeded_loads(self) -> list[Effect]:
        return [
            self._stop(runner, UnloadReason.NOT_NEEDED)
            for runner in self._runners.values()
            if runner.phase is RunnerPhase.LOADING
            and not any(
                self._requirements.is_compatible(waiter, runner)
                for waiter in self._queue.of(runner.key)
            )
        ]

    def _drop_stale_state(self) -> None:
        is_wanted = self._queue.has_waiter_for
        self._refused = {w: refused for w, refused in self._refused.items() if is_wanted(w)}
        self._outgrown_ctx = {w: n_ctx for w, n_ctx in self._outgrown_ctx.items() if is_wanted(w)}
        self._automatic = {w: n_ctx for w, n_ctx in self._automatic.items() if is_wanted(w)}

    def _expire(self, now: float) -> list[Effect]:
        reason = UnloadReason.SHUTDOWN if self._shutting_down else UnloadReason.EXPIRED
        return [
            self._stop(runner, reason)
            for runner in self._runners.values()
            if runner.is_idle and runner.expires_at <= now
        ]

    def _load_ran_out_of_memory(self, runner: RunnerRef, error: errors.OutOfMemory) -> list[Effect]:
        before = self._refused.get(runner.key)
        if runner.shortage:
            error = errors.OutOfMemory(f"{runner.shortage}: {error}")
        residents = frozenset(r.id for r in self._local_runners() if r is not runner)
        refused = self._refused[runner.key] = RefusedLoad(
            n=1 + (before.n if before is not None else 0),
            n_refused_alone=(not residents) + (before.n_refused_alone if before is not None else 0),
            runner=runner,
            residents=residents,
            error=error,
        )
        return self._give_up(refused) if refused.is_final else []

    def _give_up(self, refused: RefusedLoad, head: Waiter | None = None) -> list[Effect]:
        """Refuse the waiters for that load, except those that accept a shorter context."""
        runner = refused.runner
        del self._refused[runner.key]

        def is_refused(waiter: Waiter) -> bool:
            met = self._requirements.is_compatible(waiter, runner)
            return waiter is head or (met and self._requirements.min_ctx(waiter) >= runner.min_ctx)

        refused_waiters = self._queue.take(runner.key, is_refused)
        return [Refuse(waiter.id, refused.error) for waiter in refused_waiters]

    def _start_placed(
        self, waiter: Waiter, request: core.PlacementRequest, placement: core.Placement
    ) -> Effect:
        self._placement_query = PlacementQuery()
        # With less than `min_ctx` no waiter could use it, and it would be loaded again for ever.
        n_ctx = max(placement.spec.n_ctx, request.min_ctx)
        before = self._automatic.pop(waiter.key, 0)
        started = self._start(waiter, request.spec, replace(placement.spec, n_ctx=n_ctx))
        runner = self._runners[waiter.key]
        runner.min_ctx, runner.shortage = request.min_ctx, placement.shortage
        runner.automatic_ctx = before if waiter.local_spec.n_ctx else n_ctx
        return started

    def _start(
        self, waiter: Waiter, requested: core.LoadSpec, spec: core.LoadSpec | None = None
    ) -> Effect:
        """Start an engine.  spec: what to load, if placement changed what was requested."""
        keep_alive_s = waiter.keep_alive_s
        if keep_alive_s is None:
            keep_alive_s = self._default_keep_alive_s
        self._n_started += 1
        runner = self._runners[waiter.key] = RunnerRef(
            id=self._n_started,
            requested=requested,
            spec=spec or requested,
            model=waiter.model,
            pair=waiter.pair,
            keep_alive_s=keep_alive_s,
        )
        return Start(runner.id, runner.spec)

    def _stop(self, runner: RunnerRef, reason: UnloadReason) -> Effect:
        runner.phase = RunnerPhase.UNLOADING
        return Stop(runner.id, reason)

    def _evict(self, runner: RunnerRef) -> list[Effect]:
        if runner.is_idle:
            return [self._stop(runner, UnloadReason.EVICTED)]
        # It is in use: new users are kept away, or the head might wait for ever.
        self._draining_id = runner.id
        return []

    def _grant(self, waiter: Waiter, runner: RunnerRef) -> Effect:
        if waiter.keep_alive_s is not None:
            runner.keep_alive_s = waiter.keep_alive_s
        runner.users.add(waiter.id)
        return Grant(waiter.id, runner.id)
