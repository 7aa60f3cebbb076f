"""Contract 6: who leaves for want of memory, and what is given up where a load finds none."""

from __future__ import annotations

import pytest

from specd import errors
from specd.scheduler.effects import Effect, Grant, Refuse, Start, Stop, Weigh
from specd.scheduler.scheduler import Scheduler
from tests.scheduler.made import LARGE, load, scheduler, started, waiter

STARVED = errors.OutOfMemory("no memory")


def careful(max_loaded: int = 3) -> Scheduler:
    """One that asks; the machine's own context has 262144 tokens."""
    return scheduler(max_loaded, kind=Scheduler, machine=LARGE)


def asked(effects: list[Effect]) -> Weigh:
    [question] = effects
    assert isinstance(question, Weigh)
    return question


def load_beside(s: Scheduler, waiter_id: int, weights: str) -> int:
    question = asked(s.request(waiter(waiter_id, weights)))
    runner_id = started(s.weighed(question, fits=True))
    assert s.loaded(runner_id, 0.0) == [Grant(waiter_id, runner_id)]
    return runner_id


def n_ctx_of(effects: list[Effect]) -> int:
    [start] = effects
    assert isinstance(start, Start)
    return start.spec.n_ctx


@pytest.mark.contract("sched.memory")
def test_the_first_model_is_tried_and_the_second_is_weighed() -> None:
    s = careful()
    load(s, waiter(1, "a"))
    question = asked(s.request(waiter(2, "b", n_ctx=512)))
    assert (question.spec.weights, question.spec.n_ctx, question.spec.n_threads) == ("b", 512, 2)
    assert [spec.weights for spec in question.beside] == ["a"]
    started(s.weighed(question, fits=True))


@pytest.mark.contract("sched.memory", "sched.eviction")
def test_without_room_idle_models_leave_one_by_one_then_busy_ones_are_waited_for() -> None:
    s = careful()
    busy = load(s, waiter(1, "a"))
    idle = load_beside(s, 2, "b")
    s.leave(2, 0.0)
    assert s.weighed(asked(s.request(waiter(3, "c"))), fits=False) == [Stop(idle)]
    # There may be room by now: it is weighed again.
    assert s.weighed(asked(s.ended(idle)), fits=False) == []
    assert s.request(waiter(4, "a")) == []
    assert s.leave(1, 0.0) == [Stop(busy)]
    started(s.ended(busy))


@pytest.mark.contract("sched.memory")
def test_a_count_that_is_full_needs_no_weighing() -> None:
    s = careful(max_loaded=1)
    runner_id = load(s, waiter(1, "a"))
    s.leave(1, 0.0)
    assert s.request(waiter(2, "b")) == [Stop(runner_id)]


def test_an_answer_that_comes_too_late_decides_nothing() -> None:
    s = careful()
    load(s, waiter(1, "a"))
    late = asked(s.request(waiter(2, "b")))
    s.leave(2, 0.0)
    question = asked(s.request(waiter(3, "b")))
    assert s.weighed(late, fits=True) == []
    started(s.weighed(question, fits=True))


@pytest.mark.contract("sched.oom")
def test_an_automatic_context_shrinks_by_tiers_and_then_the_failure_is_told() -> None:
    s = careful()
    effects = s.request(waiter(1, "a"))
    for n_ctx in (262144, 32768):
        assert n_ctx_of(effects) == n_ctx
        runner_id = started(effects)
        assert s.failed(runner_id, STARVED) == []
        effects = s.ended(runner_id)
    assert n_ctx_of(effects) == 4096
    assert s.failed(started(effects), STARVED) == [Refuse(1, STARVED)]


@pytest.mark.contract("sched.oom")
def test_a_context_that_shrank_serves_who_asked_for_none() -> None:
    s = careful()
    first = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "a"))
    s.failed(first, STARVED)
    second = started(s.ended(first))
    assert s.loaded(second, 0.0) == [Grant(1, second), Grant(2, second)]
    assert s.request(waiter(3, "a")) == [Grant(3, second)]


@pytest.mark.contract("sched.oom")
def test_a_context_that_was_asked_for_stays_and_the_others_leave() -> None:
    s = careful()
    other = load(s, waiter(1, "a"))
    s.leave(1, 0.0)
    first = started(s.weighed(asked(s.request(waiter(2, "b", n_ctx=65536))), fits=True))
    assert s.failed(first, STARVED) == []
    assert s.ended(first) == [Stop(other)]
    effects = s.ended(other)
    assert n_ctx_of(effects) == 65536
    second = started(effects)
    assert s.failed(second, STARVED) == [Refuse(2, STARVED)]
    assert s.ended(second) == []


@pytest.mark.contract("sched.oom", "sched.load-failure")
def test_alone_and_with_nothing_to_give_up_the_failure_is_told() -> None:
    s = careful()
    runner_id = started(s.request(waiter(1, "a", n_ctx=65536)))
    assert s.failed(runner_id, STARVED) == [Refuse(1, STARVED)]
    s.ended(runner_id)
    # Nothing of it is remembered.
    assert n_ctx_of(s.request(waiter(2, "a"))) == 262144


@pytest.mark.contract("sched.oom")
def test_who_leaves_takes_the_next_attempt_along() -> None:
    s = careful()
    other = load(s, waiter(1, "a"))
    first = started(s.weighed(asked(s.request(waiter(2, "b", n_ctx=512))), fits=True))
    s.failed(first, STARVED)
    assert s.leave(2, 0.0) == []
    assert s.ended(first) == []
    assert s.request(waiter(3, "a")) == [Grant(3, other)]
    asked(s.request(waiter(4, "b", n_ctx=512)))
