"""The pure scheduler: single rules by hand, and all of them together by a state machine."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from specd import core, errors
from specd.scheduler.effects import Effect, Grant, Refuse, Start, Stop, Weigh
from specd.scheduler.scheduler import Phase, Scheduler, Waiter
from tests.scheduler.made import LARGE, load, scheduler, started, waiter

CRASH = errors.LoadFailed("why")
STARVED = errors.OutOfMemory("no memory")


def test_the_first_request_loads_and_is_granted_when_loaded() -> None:
    s = scheduler()
    effects = s.request(waiter(1, "a"))
    [start] = effects
    assert isinstance(start, Start)
    assert (start.spec.n_ctx, start.spec.n_threads) == (4096, 2)
    assert s.loaded(start.runner_id, 1.0) == [Grant(1, start.runner_id)]


@pytest.mark.contract("sched.loaded-free")
def test_who_asks_for_a_loaded_model_passes_the_queue() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    started(s.request(waiter(2, "b")))
    assert s.request(waiter(3, "a")) == [Grant(3, runner_id)]


@pytest.mark.contract("sched.serial")
def test_one_load_at_a_time_in_order() -> None:
    s = scheduler()
    first = started(s.request(waiter(1, "a")))
    assert s.request(waiter(2, "b")) == []
    assert s.request(waiter(3, "c")) == []
    granted, second = s.loaded(first, 0.0)
    assert granted == Grant(1, first)
    assert isinstance(second, Start)
    assert second.spec.weights == "b"


def test_a_load_that_its_first_caller_left_still_blocks_the_next_load() -> None:
    s = scheduler()
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "b"))
    s.request(waiter(3, "a"))
    assert s.leave(1, 0.0) == []
    granted, start = s.loaded(runner_id, 0.0)
    assert granted == Grant(3, runner_id)
    assert isinstance(start, Start)


@pytest.mark.contract("sched.queue", "sched.loaded-free")
def test_a_full_queue_refuses_what_needs_a_load_but_not_what_is_loaded() -> None:
    s = scheduler(max_queue=1)
    runner_id = load(s, waiter(1, "a"))
    started(s.request(waiter(2, "b")))
    assert s.request(waiter(3, "c")) == []
    [refused] = s.request(waiter(4, "d"))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.QueueFull)
    assert s.request(waiter(5, "a")) == [Grant(5, runner_id)]


@pytest.mark.contract("sched.eviction")
def test_the_idle_runner_with_the_shortest_session_makes_room() -> None:
    s = scheduler(max_loaded=2)
    load(s, waiter(1, "a", keep_alive_s=60.0))
    short = load(s, waiter(2, "b", keep_alive_s=30.0))
    s.leave(1, 0.0)
    s.leave(2, 0.0)
    assert s.request(waiter(3, "c")) == [Stop(short)]
    started(s.ended(short))


@pytest.mark.contract("sched.eviction")
def test_a_busy_runner_is_waited_for_and_gets_no_new_users_meanwhile() -> None:
    s = scheduler(max_loaded=1)
    runner_id = load(s, waiter(1, "a"))
    assert s.request(waiter(2, "b")) == []
    assert s.request(waiter(3, "a")) == []
    assert s.leave(1, 0.0) == [Stop(runner_id)]
    started(s.ended(runner_id))


def test_if_the_one_in_front_leaves_the_busy_runner_takes_users_again() -> None:
    s = scheduler(max_loaded=1)
    runner_id = load(s, waiter(1, "a"))
    s.request(waiter(2, "b"))
    s.request(waiter(3, "a"))
    assert s.leave(2, 0.0) == [Grant(3, runner_id)]


@pytest.mark.contract("sched.reload")
@pytest.mark.parametrize(
    "spec",
    [
        {"n_ctx": 512},
        {"n_gpu_layers": 3},
        {"n_threads": 7},
        {"drafter": "d"},
        {"adapters": ("lora",)},
        {"projector": "mmproj"},
    ],
)
def test_other_runner_options_reload_the_model(spec: dict[str, Any]) -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    assert s.request(waiter(2, "a", **spec)) == []
    assert s.leave(1, 0.0) == [Stop(runner_id)]
    assert started(s.ended(runner_id)) != runner_id


@pytest.mark.contract("sched.reload")
@pytest.mark.parametrize(
    "spec",
    [{"n_ctx": 0}, {"n_ctx": 4096}, {"n_gpu_layers": -1}, {"n_threads": 2}, {"drafter_name": "x"}],
)
def test_what_is_automatic_or_the_same_reloads_nothing(spec: dict[str, Any]) -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    assert s.request(waiter(2, "a", **spec)) == [Grant(2, runner_id)]


@pytest.mark.contract("sched.reload")
def test_an_automatic_context_takes_the_one_that_is_loaded() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", n_ctx=512, n_gpu_layers=5))
    assert s.request(waiter(2, "a")) == [Grant(2, runner_id)]


@pytest.mark.contract("sched.expiry")
def test_keep_alive_counts_from_the_end_of_the_last_use() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", keep_alive_s=10.0))
    assert s.next_expiry() == math.inf
    assert s.tick(1000.0) == []
    s.leave(1, 1000.0)
    assert s.next_expiry() == 1010.0
    assert s.tick(1009.0) == []
    assert s.tick(1010.0) == [Stop(runner_id)]


@pytest.mark.contract("keep-alive.absent")
def test_a_request_without_keep_alive_keeps_the_runners() -> None:
    s = scheduler()
    load(s, waiter(1, "a", keep_alive_s=10.0))
    s.leave(1, 0.0)
    s.request(waiter(2, "a"))
    s.leave(2, 5.0)
    assert s.next_expiry() == 15.0


@pytest.mark.contract("keep-alive.zero")
def test_keep_alive_zero_unloads_right_after_the_request() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", keep_alive_s=0.0))
    assert s.leave(1, 0.0) == [Stop(runner_id)]


@pytest.mark.contract("keep-alive.forever")
def test_keep_alive_for_ever_never_expires() -> None:
    s = scheduler()
    load(s, waiter(1, "a", keep_alive_s=math.inf))
    s.leave(1, 0.0)
    assert s.next_expiry() == math.inf
    assert s.tick(1e12) == []


def test_unload_waits_for_the_users() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    assert s.unload("a", 0.0) == []
    assert s.leave(1, 0.0) == [Stop(runner_id)]
    assert s.unload("unknown", 0.0) == []


def test_unload_of_an_idle_model_is_at_once() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    s.leave(1, 0.0)
    assert s.unload("a", 0.0) == [Stop(runner_id)]


@pytest.mark.contract("sched.leave")
def test_cancel_while_queued_never_loads_the_model() -> None:
    s = scheduler()
    first = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "b"))
    assert s.leave(2, 0.0) == []
    assert s.loaded(first, 0.0) == [Grant(1, first)]


@pytest.mark.contract("sched.leave")
def test_a_load_is_aborted_when_its_last_waiter_leaves() -> None:
    s = scheduler()
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "a"))
    assert s.leave(1, 0.0) == []
    assert s.leave(2, 0.0) == [Stop(runner_id)]
    assert s.loaded(runner_id, 0.0) == []
    assert s.ended(runner_id) == []


def test_a_failed_load_is_told_to_all_who_waited_for_it_and_to_nobody_else() -> None:
    s = scheduler()
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "b"))
    s.request(waiter(3, "a"))
    *refused, start = s.failed(runner_id, CRASH)
    assert refused == [Refuse(1, CRASH), Refuse(3, CRASH)]
    assert isinstance(start, Start)
    assert start.spec.weights == "b"


def test_a_crashed_engine_is_forgotten_and_the_next_request_loads_again() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    assert s.ended(runner_id) == []
    assert s.leave(1, 0.0) == []
    assert started(s.request(waiter(2, "a"))) != runner_id


def test_a_model_that_is_leaving_is_loaded_again_once_it_has_gone() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", keep_alive_s=0.0))
    s.leave(1, 0.0)
    assert s.request(waiter(2, "a")) == []
    started(s.ended(runner_id))


def test_who_joins_a_load_under_way_gets_it_although_another_is_in_front() -> None:
    s = scheduler(max_loaded=1)
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "b"))
    s.request(waiter(3, "a"))
    assert s.loaded(runner_id, 0.0) == [Grant(1, runner_id), Grant(3, runner_id)]


def test_close_refuses_who_waits_and_keeps_only_engines_in_use() -> None:
    s = scheduler(max_loaded=3)
    used = load(s, waiter(1, "a"))
    idle = load(s, waiter(2, "b"))
    s.leave(2, 0.0)
    loading = started(s.request(waiter(3, "c")))
    refused, *stops = s.close(0.0)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.ShuttingDown)
    assert stops == [Stop(idle), Stop(loading)]
    [late] = s.request(waiter(4, "a"))
    assert isinstance(late, Refuse)
    assert s.leave(1, 0.0) == [Stop(used)]


def test_shutdown_stops_engines_in_use_too_and_each_but_once() -> None:
    s = scheduler()
    used = load(s, waiter(1, "a"))
    assert s.shutdown(0.0) == [Stop(used)]
    assert s.shutdown(0.0) == []
    assert s.leave(1, 0.0) == []


MAX_LOADED = 3
MEMORY = 100


def needs(spec: core.EngineSpec) -> int:
    return {"a": 10, "b": 30, "c": 60}[spec.weights] + spec.n_ctx // 2**13


class SchedulerMachine(RuleBasedStateMachine):
    """Callers come and go, engines load, fail and die at any moment.

    Held throughout: never more engines than allowed nor than memory has room for, one load at a
    time, every waiter gets one answer, nothing loads for a caller who has left, no context is
    shorter than asked for, and no queue stands still for no reason.
    """

    waiters = Bundle("waiters")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = scheduler(MAX_LOADED, max_queue=4, kind=Scheduler, machine=LARGE)
        self.now = 0.0
        self.n_waiters = 0
        self.alive: dict[int, core.EngineSpec] = {}  # engines whose `ended` has not come
        self.loading: set[int] = set()
        self.stopping: set[int] = set()
        self.questions: list[Weigh] = []
        self.waiting: dict[int, Waiter] = {}
        self.using: dict[int, int] = {}

    def act(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(runner_id, spec):
                    assert any(w.spec.weights == spec.weights for w in self.waiting.values())
                    assert runner_id not in self.alive
                    assert not self.alive or self.has_room(spec)
                    self.alive[runner_id] = spec
                    self.loading.add(runner_id)
                case Weigh():
                    assert self.alive
                    self.questions.append(effect)
                case Stop(runner_id):
                    assert runner_id in self.alive
                    assert runner_id not in self.stopping
                    assert runner_id not in self.using.values()
                    self.stopping.add(runner_id)
                    self.loading.discard(runner_id)
                case Grant(waiter_id, runner_id):
                    asked = self.waiting.pop(waiter_id).spec
                    given = self.alive[runner_id]
                    assert runner_id not in self.loading | self.stopping
                    assert given.weights == asked.weights
                    assert asked.n_ctx in {0, given.n_ctx}
                    self.using[waiter_id] = runner_id
                case Refuse(waiter_id, _):
                    del self.waiting[waiter_id]

    @rule(
        target=waiters,
        weights=st.sampled_from("abc"),
        n_ctx=st.sampled_from([0, 512, 1024]),
        keep_alive_s=st.sampled_from([None, 0.0, 5.0, math.inf]),
    )
    def request(self, weights: str, n_ctx: int, keep_alive_s: float | None) -> int:
        self.n_waiters += 1
        who = waiter(self.n_waiters, weights, keep_alive_s, n_ctx=n_ctx)
        self.waiting[who.id] = who
        self.act(self.scheduler.request(who))
        return who.id

    @rule(waiter_id=waiters)
    def leave(self, waiter_id: int) -> None:
        self.waiting.pop(waiter_id, None)
        self.using.pop(waiter_id, None)
        self.act(self.scheduler.leave(waiter_id, self.now))

    @rule()
    def an_engine_is_loaded(self) -> None:
        if self.loading:
            self.act(self.scheduler.loaded(self.loading.pop(), self.now))

    @rule(error=st.sampled_from([CRASH, STARVED]))
    def a_load_fails(self, error: errors.SpecdError) -> None:
        if self.loading:
            runner_id = self.loading.pop()
            self.stopping.add(runner_id)
            self.act(self.scheduler.failed(runner_id, error))

    @rule()
    def memory_is_weighed(self) -> None:
        if self.questions:
            question = self.questions.pop(0)
            self.act(self.scheduler.weighed(question, fits=self.has_room(question.spec)))

    def has_room(self, spec: core.EngineSpec) -> bool:
        return needs(spec) <= 0.8 * (MEMORY - sum(map(needs, self.alive.values())))

    @rule(data=st.data())
    def an_engine_ends(self, data: st.DataObject) -> None:
        """Stopped or crashed; an engine that dies while loading fails its load first."""
        endable = sorted(self.alive.keys() - self.loading)
        if endable:
            self.end(data.draw(st.sampled_from(endable)))

    def end(self, runner_id: int) -> None:
        del self.alive[runner_id]
        self.stopping.discard(runner_id)
        for waiter_id in [w for w, r in self.using.items() if r == runner_id]:
            del self.using[waiter_id]  # told by the client; its `leave` may come later
        self.act(self.scheduler.ended(runner_id))

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.scheduler.tick(self.now))
        assert self.scheduler.next_expiry() > self.now

    @rule(weights=st.sampled_from("abc"))
    def unload(self, weights: str) -> None:
        self.act(self.scheduler.unload(weights, self.now))

    @rule(target=waiters, starved=st.booleans())
    def all_comes_to_rest(self, *, starved: bool) -> object:
        """If every user leaves, every waiter gets its answer, though no load may find memory."""
        for _ in range(200):
            if not self.waiting:
                break
            if self.questions:
                self.memory_is_weighed()
            elif self.loading and starved:
                self.a_load_fails(STARVED)
            elif self.loading:
                self.an_engine_is_loaded()
            elif self.stopping:
                self.end(min(self.stopping))
            else:
                assert self.using, "the queue stands still and nobody is at work"
                self.leave(min(self.using))
        assert not self.waiting
        return multiple()

    @invariant()
    def never_more_engines_than_allowed(self) -> None:
        assert len(self.alive) <= MAX_LOADED

    @invariant()
    def one_load_at_a_time(self) -> None:
        assert len(self.loading) <= 1

    @invariant()
    def the_scheduler_knows_who_waits(self) -> None:
        assert {w.id for w in self.scheduler.waiting()} == self.waiting.keys()

    @invariant()
    def no_load_for_a_caller_who_left(self) -> None:
        for runner in self.scheduler.runners():
            if runner.phase is Phase.LOADING:
                weights = runner.spec.weights
                assert any(w.spec.weights == weights for w in self.waiting.values())


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = hypothesis_settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
