"""Which models are resident, who waits and who leaves: pure decisions.

Events in, effects out, time as an argument; `loop.py` acts.  The rules are Ollama's: one load at a
time, the head of the queue blocks those behind it, who asks for a loaded model does not queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from specd import core, errors
from specd.scheduler.effects import Effect, Grant, Leave, Place, Refuse, Start, Stop
from specd.scheduler.memory import Inquiry, Refused
from specd.scheduler.queue import Queue
from specd.scheduler.runner import Phase, Runner, Waiter
from specd.scheduler.wants import Wants


class Scheduler:
    """Every method is one event and returns what must be done about it, in order."""

    def __init__(
        self,
        wants: Wants,
        *,
        max_loaded: int,
        max_queue: int,
        default_keep_alive_s: float,
    ) -> None:
        self._wants = wants
        self._max_loaded = max_loaded
        self._max_queue = max_queue
        self._default_keep_alive_s = default_keep_alive_s
        self._runners: dict[str, Runner] = {}  # by the target's weights, as the next three
        self._refused: dict[str, Refused] = {}
        self._outgrown: dict[str, int] = {}  # the context that was too short, before a reload
        self._automatic: dict[str, int] = {}  # `Runner.automatic_ctx`, during a reload
        self._queue = Queue()
        self._offered: set[int] = set()  # runners that all who wait were held against
        self._in_the_way: int | None = None  # the runner that the head waits to see leave
        self._inquiry = Inquiry()
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
        self._queue.remove(waiter_id)
        for runner in self._runners.values():
            if waiter_id in runner.users:
                runner.users.remove(waiter_id)
                if not runner.users:
                    runner.expires_at = now + runner.keep_alive_s
        return self._expire(now) + self._advance()

    def placed(self, question: Place, placement: core.Placement) -> list[Effect]:
        """The answer to a Place."""
        self._inquiry.answer(question, placement)
        return self._advance()

    def unplaceable(self, question: Place, error: errors.SpecdError) -> list[Effect]:
        """What was asked for can lie nowhere on this machine, whoever leaves."""
        told = self._take_from_queue(
            question.request.spec.weights, lambda waiter: waiter.id == question.waiter_id
        )
        return [*(Refuse(waiter.id, error) for waiter in told), *self._advance()]

    def loaded(self, runner_id: int, now: float) -> list[Effect]:
        """All who waited for this very load get it, wherever in the queue they are."""
        runner = self._by_id(runner_id)
        if runner is None or runner.phase is not Phase.LOADING:
            return []
        runner.phase = Phase.LOADED
        runner.expires_at = now + runner.keep_alive_s
        self._refused.pop(runner.weights, None)
        self._outgrown.pop(runner.weights, None)
        granted = self._take_from_queue(
            runner.weights, lambda waiter: self._wants.are_met(waiter, runner)
        )
        return [*(self._grant(waiter, runner) for waiter in granted), *self._advance()]

    def failed(self, runner_id: int, error: errors.SpecdError) -> list[Effect]:
        """The load failed: all who waited for this very load are told; `ended` follows.

        Where memory was short they wait on, while there is something to give up.
        """
        runner = self._by_id(runner_id)
        if runner is None or runner.phase is not Phase.LOADING:
            return []
        runner.phase = Phase.LEAVING
        self._outgrown.pop(runner.weights, None)
        if isinstance(error, errors.OutOfMemory):
            return [*self._memory_was_refused(runner, error), *self._advance()]
        told = self._take_from_queue(
            runner.weights, lambda waiter: self._wants.are_met(waiter, runner)
        )
        return [*(Refuse(waiter.id, error) for waiter in told), *self._advance()]

    def ended(self, runner_id: int) -> list[Effect]:
        """The process is gone, told to or not; the next request loads the model again."""
        runner = self._by_id(runner_id)
        if runner is not None:
            del self._runners[runner.weights]
            self._automatic[runner.weights] = runner.automatic_ctx
        return self._advance()

    def starved(self, now: float) -> list[Effect]:
        """An engine found no memory for an answer: whoever is not used leaves."""
        idle = [runner for runner in self._runners.values() if runner.is_idle]
        for runner in idle:
            runner.expires_at = now
        return [*(self._stop(runner, Leave.MAKE_ROOM) for runner in idle), *self._advance()]

    def tick(self, now: float) -> list[Effect]:
        return self._expire(now) + self._advance()

    def unload(self, weights: str, now: float) -> list[Effect]:
        """Let a model go as soon as nobody uses it; those who wait for it still get it once."""
        runner = self._runners.get(weights)
        if runner is None:
            return []
        runner.keep_alive_s = 0.0
        if runner.is_idle:
            runner.expires_at = now
        return self._expire(now) + self._advance()

    def adjust(self, *, max_queue: int, default_keep_alive_s: float) -> list[Effect]:
        """From now on; what waits already, waits on, and what is loaded keeps its keep_alive."""
        self._max_queue = max_queue
        self._default_keep_alive_s = default_keep_alive_s
        return []

    def close(self, now: float) -> list[Effect]:
        """Refuse who waits and who comes; an engine leaves when its last user has."""
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
        """`close`, and every engine stops, used or not."""
        closed = self.close(now)
        used = [r for r in self._runners.values() if r.phase is not Phase.LEAVING]
        return [*closed, *(self._stop(runner, Leave.SHUTDOWN) for runner in used)]

    # ----------------------------------------------------------------------- questions

    def next_expiry(self) -> float:
        """When `tick` is due; inf for never."""
        return min((r.expires_at for r in self._runners.values() if r.is_idle), default=math.inf)

    def runners(self) -> list[Runner]:
        return list(self._runners.values())

    def waiting(self) -> list[Waiter]:
        return list(self._queue)

    # ----------------------------------------------------------------------- decisions

    def _advance(self) -> list[Effect]:
        """Serve the queue from its head; then those behind it whose model is there anyway."""
        effects: list[Effect] = self._abort_load_for_nobody()
        self._in_the_way = None
        self._forget_what_nobody_wants()
        while (head := self._queue.head) is not None:
            if (runner := self._serving(head)) is not None:
                self._queue.remove(head.id)
                effects.append(self._grant(head, runner))
                continue
            effects += self._make_way_for(head)
            if self._queue.head is head:
                break
        return effects + self._offer()

    def _offer(self) -> list[Effect]:
        """A model that was not to be had before, to all who wait for it.

        Whoever came since has asked for it himself.
        """
        effects: list[Effect] = []
        serving = [runner for runner in self._runners.values() if self._is_open(runner)]
        for runner in serving:
            if runner.id in self._offered:
                continue
            for waiter in list(self._queue.of(runner.weights)):
                if self._wants.are_met(waiter, runner):
                    self._queue.remove(waiter.id)
                    effects.append(self._grant(waiter, runner))
        self._offered = {runner.id for runner in serving}
        return effects

    def _make_way_for(self, head: Waiter) -> list[Effect]:
        """(1) a load is under way: wait.  (2) its model is loaded otherwise: that must leave.

        (3) too many are there: the idle one with the shortest session leaves, else wait.
        (4) memory was refused beside those that are there: all idle ones leave, at last everyone.
        (5) find room.
        """
        others = sorted(self._runners.values(), key=lambda runner: runner.turn_to_leave)
        if any(runner.phase is Phase.LOADING for runner in others):
            return []
        if (there := self._runners.get(head.weights)) is not None:
            if there.is_idle and self._wants.outgrows(head, there):
                self._outgrown[head.weights] = there.spec.n_ctx
            return self._send_away(there)
        refused = self._refused.get(head.weights)
        if others and len(others) >= self._max_loaded:
            return self._send_away(others[0])
        if others and refused is not None and (refused.next_is_alone or not others[0].users):
            idle = [self._stop(other, Leave.MAKE_ROOM) for other in others if other.is_idle]
            return idle or self._send_away(others[0])
        return self._find_room_for(head, others)

    def _find_room_for(self, head: Waiter, others: Sequence[Runner]) -> list[Effect]:
        """others: who leaves first comes first."""
        question = self._question(head, others)
        request, refused = question.request, self._refused.get(head.weights)
        effects = self._inquiry.put(question)
        if (placement := self._inquiry.placement) is not None:
            costs_drafter = request.spec.drafter is not None and placement.spec.drafter is None
            if costs_drafter and self._outgrown.pop(head.weights, None) is not None:
                # No context longer than is asked for is worth that.
                return [*effects, *self._find_room_for(head, others)]
            if refused is None or not refused.again(placement.spec, others):
                return [self._start(head, request, placement)]
            if not others:
                return self._give_up(refused, head)
        elif not self._inquiry.is_full:
            return effects
        elif self._outgrown.pop(head.weights, None) is not None:
            # The first thing to give up.
            return [*effects, *self._find_room_for(head, others)]
        return [*effects, *self._send_away(others[0])]

    def _question(self, head: Waiter, others: Sequence[Runner]) -> Place:
        refused, outgrown = self._refused.get(head.weights), self._outgrown.get(head.weights)
        spec = self._wants.filled(head)
        give_up = core.GiveUp.NOTHING
        if outgrown is not None and (grown := self._wants.grown(head, outgrown)) != spec:
            spec = grown
        elif not others:
            give_up = core.GiveUp.ANYTHING
        elif all(other.users for other in others):
            give_up = core.GiveUp.DRAFTER
        request = core.PlacementRequest(
            spec=spec,
            least_ctx=self._wants.least_ctx(head),
            beside=tuple(runner.spec for runner in self._runners.values()),
            give_up=give_up,
            n_refusals=refused.n if refused is not None else 0,
            n_refused_alone=refused.n_alone if refused is not None else 0,
            name=head.model.name,
        )
        return Place(head.id, request)

    def _serving(self, waiter: Waiter) -> Runner | None:
        runner = self._runners.get(waiter.weights)
        if runner is None or not self._is_open(runner):
            return None
        return runner if self._wants.are_met(waiter, runner) else None

    def _is_open(self, runner: Runner) -> bool:
        return runner.phase is Phase.LOADED and runner.id != self._in_the_way

    def _abort_load_for_nobody(self) -> list[Effect]:
        return [
            self._stop(runner, Leave.UNWANTED)
            for runner in self._runners.values()
            if runner.phase is Phase.LOADING
            and not any(
                self._wants.are_met(waiter, runner) for waiter in self._queue.of(runner.weights)
            )
        ]

    def _forget_what_nobody_wants(self) -> None:
        wants = self._queue.wants
        self._refused = {w: refused for w, refused in self._refused.items() if wants(w)}
        self._outgrown = {w: n_ctx for w, n_ctx in self._outgrown.items() if wants(w)}
        self._automatic = {w: n_ctx for w, n_ctx in self._automatic.items() if wants(w)}

    def _expire(self, now: float) -> list[Effect]:
        why = Leave.SHUTDOWN if self._shutting_down else Leave.EXPIRED
        return [
            self._stop(runner, why)
            for runner in self._runners.values()
            if runner.is_idle and runner.expires_at <= now
        ]

    # ----------------------------------------------------------------------- memory refused

    def _memory_was_refused(self, runner: Runner, error: errors.OutOfMemory) -> list[Effect]:
        before = self._refused.get(runner.weights)
        if runner.shortage:
            error = errors.OutOfMemory(f"{runner.shortage}: {error}")
        beside = frozenset(r.id for r in self._runners.values() if r is not runner)
        refused = self._refused[runner.weights] = Refused(
            n=1 + (before.n if before is not None else 0),
            n_alone=(not beside) + (before.n_alone if before is not None else 0),
            runner=runner,
            beside=beside,
            error=error,
        )
        return self._give_up(refused) if refused.is_final else []

    def _give_up(self, refused: Refused, head: Waiter | None = None) -> list[Effect]:
        """Tell those who wait for that load; who can do with a shorter context may still get it."""
        runner = refused.runner
        del self._refused[runner.weights]

        def is_told(waiter: Waiter) -> bool:
            met = self._wants.are_met(waiter, runner)
            return waiter is head or (met and self._wants.least_ctx(waiter) >= runner.least_ctx)

        told = self._take_from_queue(runner.weights, is_told)
        return [Refuse(waiter.id, refused.error) for waiter in told]

    # ----------------------------------------------------------------------- steps

    def _start(
        self, waiter: Waiter, request: core.PlacementRequest, placement: core.Placement
    ) -> Effect:
        self._inquiry = Inquiry()
        keep_alive_s = waiter.keep_alive_s
        if keep_alive_s is None:
            keep_alive_s = self._default_keep_alive_s
        self._n_started += 1
        # With less than was asked for it would be loaded for nobody, and that for ever.
        n_ctx = max(placement.spec.n_ctx, request.least_ctx)
        before = self._automatic.pop(waiter.weights, 0)
        runner = Runner(
            id=self._n_started,
            asked=request.spec,
            spec=replace(placement.spec, n_ctx=n_ctx),
            least_ctx=request.least_ctx,
            model=waiter.model,
            pair=waiter.pair,
            keep_alive_s=keep_alive_s,
            automatic_ctx=before if waiter.spec.n_ctx else n_ctx,
            shortage=placement.shortage,
        )
        self._runners[waiter.weights] = runner
        return Start(runner.id, runner.spec)

    def _stop(self, runner: Runner, why: Leave) -> Effect:
        runner.phase = Phase.LEAVING
        return Stop(runner.id, why)

    def _send_away(self, runner: Runner) -> list[Effect]:
        if runner.is_idle:
            return [self._stop(runner, Leave.MAKE_ROOM)]
        # Busy: no new users for it, or the head might wait for ever.
        self._in_the_way = runner.id
        return []

    def _grant(self, waiter: Waiter, runner: Runner) -> Effect:
        if waiter.keep_alive_s is not None:
            runner.keep_alive_s = waiter.keep_alive_s
        runner.users.add(waiter.id)
        return Grant(waiter.id, runner.id)

    def _take_from_queue(self, weights: str, is_meant: Callable[[Waiter], bool]) -> list[Waiter]:
        taken = [waiter for waiter in self._queue.of(weights) if is_meant(waiter)]
        for waiter in taken:
            self._queue.remove(waiter.id)
        return taken

    def _by_id(self, runner_id: int) -> Runner | None:
        return next((r for r in self._runners.values() if r.id == runner_id), None)
