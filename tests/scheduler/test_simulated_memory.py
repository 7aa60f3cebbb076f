"""All rules of the scheduler together, on a simulated machine that counts each byte of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specd import core, errors
from specd.scheduler import Scheduler
from specd.scheduler.effects import Effect, Grant, Place, Refuse, Start, Stop
from specd.scheduler.placement_query import MAX_REFUSALS
from specd.scheduler.runner_ref import RunnerPhase, Waiter, as_local
from tests.scheduler.factories import LARGE, scheduler, waiter

MAX_LOADED = 3
MAX_QUEUE = 4
MEMORY = 100
N_CTX_TRAIN = 2**15
CRASH = errors.LoadFailed("why")
STARVED = errors.OutOfMemory("no memory")

NOWHERE = errors.InvalidOption("there is no such GPU")

_BYTES = {"a": 5, "b": 10, "c": 25, "d": 50}
_DRAFTER_BYTES = 5

WEIGHTS = st.sampled_from("abcd")
KEEP_ALIVE = st.sampled_from([None, None, None, math.inf, 5.0, 0.0])
SPECS = st.fixed_dictionaries(
    {"n_ctx": st.sampled_from([0, 512, 1024, 5000, N_CTX_TRAIN])},
    optional={
        "drafter": st.sampled_from("xy"),
        "pair_source": st.sampled_from(["registry", "manifest"]),
        "n_batch": st.sampled_from([512, 512, 64]),
    },
)


def bytes_of(spec: core.EngineSpec) -> int:
    """Return the bytes on the device: 0 if all layers are in main memory."""
    if spec.n_gpu_layers == 0:
        return 0
    drafter = _DRAFTER_BYTES if spec.drafter is not None else 0
    return _BYTES[spec.weights] + drafter + spec.n_ctx // 2**10


@dataclass(frozen=True)
class Failure:
    """The last load of a model that failed without memory, while requests still wait for it."""

    n: int
    spec: core.EngineSpec
    others: frozenset[int]


@dataclass
class Machine:
    """Exact memory: engines hold the bytes of their specs until they have ended."""

    held: dict[int, core.EngineSpec]

    @property
    def free(self) -> int:
        return MEMORY - sum(map(bytes_of, self.held.values()))

    def place(self, request: core.PlacementRequest) -> core.Placement:
        """Give up as little as necessary within the limit, and slightly more after each refusal."""
        free, spec, most = self.free, request.spec, request.give_up
        has_learned = request.n_refusals > 0 and most > core.GiveUp.NOTHING
        if bytes_of(spec) <= free and not has_learned:
            return core.Placement(spec=spec, fits=True)
        if most >= core.GiveUp.DRAFTER:
            spec = replace(spec, drafter=None, no_pair_reason="drafter_no_vram")
            if bytes_of(spec) <= free and not (has_learned and most > core.GiveUp.DRAFTER):
                return core.Placement(spec=spec, fits=True)
        if most < core.GiveUp.ANYTHING:
            return core.Placement(spec=request.spec, fits=False)
        spec = replace(spec, n_ctx=max(spec.n_ctx >> request.n_refusals, request.min_ctx))
        if bytes_of(spec) > free:
            spec = replace(spec, n_gpu_layers=0)
        return core.Placement(spec=spec, fits=True)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests start and end, and engines load, fail and crash, at any moment.

    Each effect is checked when it occurs; the invariants are checked after each rule.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = scheduler(MAX_LOADED, MAX_QUEUE, kind=Scheduler, machine=LARGE)
        self.alive: dict[int, core.EngineSpec] = {}  # engines whose `ended` has not come
        self.machine = Machine(self.alive)
        self.closed = False
        self.now = 0.0
        self.n_waiters = 0
        self.loading: set[int] = set()
        self.stopping: set[int] = set()
        self.failing: set[int] = set()  # their load failed, so they exit without a stop
        self.answers: list[tuple[Place, core.Placement]] = []  # not delivered yet
        self.waiting: dict[int, Waiter] = {}
        self.using: dict[int, int] = {}
        self.last_told: Place | None = None
        self.told: set[tuple[int, core.GiveUp]] = set()
        self.requested: dict[int, core.EngineSpec] = {}
        self.failures: dict[str, Failure] = {}

    # ----------------------------------------------------------------------- effects

    def act(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(runner_id, spec):
                    self.start(runner_id, as_local(spec))
                case Place():
                    self.ask(effect)
                case Stop(runner_id):
                    self.stop(runner_id)
                case Grant(waiter_id, runner_id):
                    self.grant(self.waiting.pop(waiter_id), runner_id)
                case Refuse(waiter_id, error):
                    who = self.waiting.pop(waiter_id)
                    if error is STARVED:
                        self.failures.pop(who.key, None)
        wanted = {who.key for who in self.waiting.values()}
        self.failures = {w: failure for w, failure in self.failures.items() if w in wanted}

    def ask(self, question: Place) -> None:
        """Check a query: for the first waiter, the current engines, and a permitted loss."""
        request = question.request
        assert question.waiter_id == min(self.waiting)
        assert sorted(request.residents, key=str) == sorted(self.alive.values(), key=str)
        assert request.min_ctx <= request.spec.n_ctx
        failure = self.failures.get(request.spec.weights)
        assert request.n_refusals == (failure.n if failure else 0) < MAX_REFUSALS
        who = self.waiting[question.waiter_id]
        if failure:
            assert request.spec.n_ctx == min(as_local(who.spec).n_ctx or N_CTX_TRAIN, N_CTX_TRAIN)
        others = set(self.alive) - set(self.using.values())
        if others:
            assert request.give_up is core.GiveUp.NOTHING
        elif self.alive:
            assert request.give_up <= core.GiveUp.DRAFTER
        self.answers.append((question, self.machine.place(request)))

    def start(self, runner_id: int, spec: core.EngineSpec) -> None:
        assert runner_id not in self.alive
        # First come, first served, and one load at a time.
        assert spec.weights == self.waiting[min(self.waiting)].key
        assert not self.loading
        assert spec.weights not in {there.weights for there in self.alive.values()}
        assert bytes_of(spec) <= self.machine.free
        if failure := self.failures.get(spec.weights):
            assert spec != failure.spec or self.alive.keys() < failure.others
            assert failure.n < MAX_REFUSALS - 1 or not self.alive
        self.alive[runner_id] = spec
        self.loading.add(runner_id)
        assert self.last_told is not None
        self.requested[runner_id] = self.last_told.request.spec

    def stop(self, runner_id: int) -> None:
        assert runner_id in self.alive
        assert runner_id not in self.stopping | self.failing
        assert runner_id not in self.using.values()
        if runner_id not in self.loading and not self.closed:
            self.check_eviction(runner_id)
        self.stopping.add(runner_id)
        self.loading.discard(runner_id)

    def check_eviction(self, runner_id: int) -> None:
        """Check that early unloads start with the shortest session, one after the other."""
        there = {runner.id: runner for runner in self.scheduler.runners()}
        evicted = there[runner_id]
        if evicted.expires_at <= self.now:
            return
        head = self.waiting[min(self.waiting)]
        if head.key not in {evicted.key, *self.failures}:
            idle = [runner for runner in there.values() if runner.is_idle]
            assert all(evicted.keep_alive_s <= runner.keep_alive_s for runner in idle)
            assert not self.stopping | self.failing

    def grant(self, who: Waiter, runner_id: int) -> None:
        given = self.alive[runner_id]
        assert runner_id not in self.loading | self.stopping | self.failing
        assert given.weights == who.key
        assert given.n_ctx >= min(as_local(who.spec).n_ctx, N_CTX_TRAIN)
        assert given.n_batch == as_local(who.spec).n_batch
        if who.spec.pair_source == "manifest":
            assert self.requested[runner_id].drafter == as_local(who.spec).drafter
        self.using[who.id] = runner_id

    # ----------------------------------------------------------------------- requests

    @initialize(there=st.sets(WEIGHTS), busy=st.sets(WEIGHTS))
    def some_models_are_there(self, there: set[str], busy: set[str]) -> None:
        for weights in sorted(there | busy):
            self.request_and_get(weights, None, {"n_ctx": 512}, stays=weights in busy)

    @rule(who=st.lists(st.tuples(WEIGHTS, KEEP_ALIVE, SPECS), min_size=1, max_size=3))
    def request(self, who: list[tuple[str, float | None, dict[str, Any]]]) -> None:
        for weights, keep_alive_s, spec in who:
            self.ask_for(weights, keep_alive_s, **spec)

    @precondition(lambda self: not self.loading)
    @rule(weights=WEIGHTS, spec=SPECS)
    def request_a_load(self, weights: str, spec: dict[str, Any]) -> None:
        """Request a model; continue until its load begins or waits for a release."""
        self.ask_for(weights, **spec)
        while not self.loading and self.work():
            pass

    @rule(weights=WEIGHTS, keep_alive_s=KEEP_ALIVE, spec=SPECS, stays=st.booleans())
    def request_and_get(
        self, weights: str, keep_alive_s: float | None, spec: dict[str, Any], *, stays: bool
    ) -> None:
        """Request a model, load it if necessary, and use it: the most frequent case."""
        who = self.ask_for(weights, keep_alive_s, **spec)
        while who.id in self.waiting and self.work():
            pass
        if not stays:
            self.go(who.id)

    @precondition(lambda self: any(runner.is_idle for runner in self.scheduler.runners()))
    @rule(data=st.data(), more=st.integers(1, 3000))
    def request_more_of_what_is_there(self, data: st.DataObject, more: int) -> None:
        idle = [runner for runner in self.scheduler.runners() if runner.is_idle]
        runner = data.draw(st.sampled_from(idle))
        self.ask_for(runner.key, None, n_ctx=as_local(runner.spec).n_ctx + more)

    def ask_for(self, weights: str, keep_alive_s: float | None = None, **spec: Any) -> Waiter:
        self.n_waiters += 1
        who = waiter(self.n_waiters, weights, keep_alive_s, N_CTX_TRAIN, **spec)
        self.waiting[who.id] = who
        self.act(self.scheduler.request(who))
        return who

    @precondition(lambda self: self.n_waiters)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """End a request that waits, uses an engine, or has lost its engine."""
        waiting = st.sampled_from(sorted(self.waiting)) if self.waiting else st.nothing()
        self.go(data.draw(waiting | st.integers(1, self.n_waiters)))

    @precondition(lambda self: self.using)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.go(data.draw(st.sampled_from(sorted(self.using))))

    def go(self, waiter_id: int) -> None:
        self.waiting.pop(waiter_id, None)
        self.using.pop(waiter_id, None)
        self.act(self.scheduler.release(waiter_id, self.now))

    # ----------------------------------------------------------------------- engines

    @precondition(lambda self: self.loading)
    @rule()
    def an_engine_is_loaded(self) -> None:
        runner_id = self.loading.pop()
        self.failures.pop(self.alive[runner_id].weights, None)
        self.act(self.scheduler.loaded(runner_id, self.now))

    @precondition(lambda self: self.loading)
    @rule(error=st.sampled_from([CRASH, STARVED, STARVED]))
    def a_load_fails(self, error: errors.SpecdError) -> None:
        runner_id = self.loading.pop()
        self.failing.add(runner_id)
        if error is STARVED:
            spec = self.alive[runner_id]
            before = self.failures.get(spec.weights)
            others = frozenset(self.alive.keys() - {runner_id})
            self.failures[spec.weights] = Failure(before.n + 1 if before else 1, spec, others)
        self.act(self.scheduler.failed(runner_id, error))
        weights = self.alive[runner_id].weights
        if (failure := self.failures.get(weights)) and failure.n >= MAX_REFUSALS:
            # That load is abandoned; a waiter for another context has separate loads.
            del self.failures[weights]

    @precondition(lambda self: self.stopping)
    @rule(late=st.booleans())
    def a_late_result_of_a_load_changes_nothing(self, *, late: bool) -> None:
        """The engine sent its result before it received the stop."""
        for runner_id in self.stopping:
            event = (
                self.scheduler.loaded(runner_id, self.now)
                if late
                else self.scheduler.failed(runner_id, CRASH)
            )
            assert event == []

    @precondition(lambda self: self.alive.keys() - self.loading)
    @rule(data=st.data())
    def an_engine_ends(self, data: st.DataObject) -> None:
        """End an engine that was stopped or crashed; a crash in a load fails the load first."""
        endable = sorted(self.alive.keys() - self.loading)
        self.end(data.draw(st.sampled_from(endable)))

    def end(self, runner_id: int) -> None:
        del self.alive[runner_id]
        self.stopping.discard(runner_id)
        self.failing.discard(runner_id)
        for waiter_id in [w for w, r in self.using.items() if r == runner_id]:
            del self.using[waiter_id]  # the client gets the error; its release may come later
        self.act(self.scheduler.ended(runner_id))

    # ----------------------------------------------------------------------- memory, time, users

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def memory_answers(self, data: st.DataObject) -> None:
        """Deliver any pending placement, also for a request that has ended."""
        self.tell(data.draw(st.integers(0, len(self.answers) - 1)))

    def tell(self, index: int) -> None:
        self.last_told, placement = self.answers.pop(index)
        self.told.add((self.last_told.waiter_id, self.last_told.request.give_up))
        self.act(self.scheduler.placed(self.last_told, placement))

    @precondition(lambda self: self.answers)
    @rule()
    def memory_is_held_by_strangers(self) -> None:
        self.last_told, _ = self.answers.pop()
        self.told.add((self.last_told.waiter_id, self.last_told.request.give_up))
        request = self.last_told.request
        if fits := request.give_up is core.GiveUp.ANYTHING:
            spec = replace(request.spec, n_ctx=request.min_ctx, n_gpu_layers=0)
        else:
            spec = request.spec
        self.act(self.scheduler.placed(self.last_told, core.Placement(spec=spec, fits=fits)))

    @precondition(lambda self: self.answers)
    @rule()
    def it_can_lie_nowhere(self) -> None:
        question, _ = self.answers.pop()
        self.act(self.scheduler.placement_failed(question, NOWHERE))
        assert question.waiter_id not in self.waiting

    @precondition(lambda self: self.alive)
    @rule(weights=st.sampled_from("abcd--"))
    def a_model_is_let_go(self, weights: str) -> None:
        """Unload one model by name, or all idle ones because an answer has no memory."""
        if weights == "-":
            self.act(self.scheduler.ran_out_of_memory(self.now))
            assert not any(runner.is_idle for runner in self.scheduler.runners())
        else:
            self.act(self.scheduler.unload(weights, self.now))

    @precondition(lambda self: math.isfinite(self.scheduler.next_expiry()))
    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.scheduler.tick(self.now))
        assert self.scheduler.next_expiry() > self.now

    # ----------------------------------------------------------------------- progress

    def work(self, error: errors.SpecdError | None = None) -> bool:
        """Complete one pending operation; return False if there is none.

        error: the error with which loads fail; None lets them succeed.
        """
        if self.answers:
            self.tell(0)
        elif self.loading and error is not None:
            self.a_load_fails(error)
        elif self.loading:
            self.an_engine_is_loaded()
        elif self.stopping | self.failing:
            self.end(min(self.stopping | self.failing))
        else:
            return False
        return True

    @precondition(lambda self: self.loading)
    @rule(weights=WEIGHTS, comes=st.booleans())
    def the_first_request_of_a_load_is_cancelled(self, weights: str, *, comes: bool) -> None:
        """Another request may need the load by now, and an earlier waiter another model."""
        self.ask_for(weights)
        [runner_id] = self.loading
        if comes:
            self.ask_for(self.alive[runner_id].weights)
        self.go(min(self.waiting))

    @precondition(lambda self: self.waiting)
    @rule(n=st.integers(1, MAX_REFUSALS))
    def memory_is_refused_again_and_again(self, n: int) -> None:
        for _ in range(n):
            while not self.loading and self.work():
                pass
            if self.loading:
                self.a_load_fails(STARVED)

    @precondition(lambda self: self.waiting)
    @rule(n=st.integers(1, 8))
    def all_goes_well(self, n: int) -> None:
        while n and self.work():
            n -= 1

    @precondition(lambda self: self.waiting)
    @rule(error=st.sampled_from([None, CRASH, STARVED]))
    def every_waiter_gets_an_answer(self, error: errors.SpecdError | None) -> None:
        """If every user leaves, every waiter gets an answer, even if all loads fail."""
        for _ in range(200):
            if not self.waiting:
                break
            if not self.work(error):
                assert self.using, "requests wait, but no work is pending"
                self.go(min(self.using))
        assert not self.waiting

    @precondition(lambda self: self.waiting)
    @rule(pattern=st.lists(st.sampled_from("abcd"), min_size=1, max_size=4))
    def the_first_waiter_is_served_despite_new_requests(self, pattern: list[str]) -> None:
        """Each answer ends, but new requests for the loaded models always follow."""
        head = min(self.waiting)
        for n_round in range(100):
            if head not in self.waiting:
                break
            for user in sorted(self.using):
                self.ask_for(pattern[n_round % len(pattern)])
                self.go(user)
            self.ask_for(pattern[n_round % len(pattern)])
            self.work()
        assert head not in self.waiting, "the first waiter is never served"

    def teardown(self) -> None:
        """Check that a shutdown refuses all waiters and ends all engines."""
        self.closed = True
        self.act(self.scheduler.close(self.now))
        assert not self.waiting
        late = self.ask_for("a")
        assert late.id not in self.waiting
        for user in sorted(self.using)[::2]:
            self.go(user)
        self.using.clear()
        self.act(self.scheduler.shutdown(self.now))
        assert self.stopping | self.failing == self.alive.keys()
        for runner_id in list(self.alive):
            self.end(runner_id)
        assert self.scheduler.runners() == []

    # ----------------------------------------------------------------------- invariants

    @invariant()
    def never_more_engines_than_allowed(self) -> None:
        assert len(self.alive) <= MAX_LOADED

    @invariant()
    def never_more_bytes_than_there_are(self) -> None:
        assert self.machine.free >= 0

    @invariant()
    def one_load_at_a_time(self) -> None:
        assert len(self.loading) <= 1

    @invariant()
    def the_scheduler_has_all_waiters_in_order(self) -> None:
        assert [who.id for who in self.scheduler.waiting()] == sorted(self.waiting)

    @invariant()
    def the_scheduler_has_all_engines(self) -> None:
        there = {runner.id: runner for runner in self.scheduler.runners()}
        assert there.keys() == self.alive.keys()
        for runner_id, runner in there.items():
            assert (runner.phase is RunnerPhase.LOADING) == (runner_id in self.loading)
            leaves = runner_id in self.stopping | self.failing
            assert (runner.phase is RunnerPhase.UNLOADING) == leaves

    @invariant()
    def every_waiter_waits_for_something(self) -> None:
        if self.waiting:
            at_work = self.answers or self.loading or self.stopping or self.failing
            assert at_work or self.using, "requests wait, but no work is pending"
            head = self.waiting[min(self.waiting)]
            its_own = any(runner.key == head.key for runner in self.scheduler.runners())
            if not at_work and not its_own:
                assert self.alive.keys() == set(self.using.values()), "a model is idle"
                asked_all = (head.id, core.GiveUp.DRAFTER) in self.told
                assert asked_all or len(self.alive) == MAX_LOADED or head.key in self.failures

    @invariant()
    def no_load_without_a_waiter(self) -> None:
        for runner_id in self.loading:
            weights = self.alive[runner_id].weights
            assert any(who.key == weights for who in self.waiting.values())


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = hypothesis_settings(max_examples=60, stateful_step_count=50, deadline=None)
