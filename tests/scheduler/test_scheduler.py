"""The rules of the scheduler, one by one, with unlimited memory."""

from __future__ import annotations

import math

import pytest

from specd import errors
from specd.scheduler.effects import Grant, Refuse, Start, Stop
from specd.scheduler.runner_ref import as_local
from tests.scheduler.factories import load, scheduler, started, waiter

CRASH = errors.LoadFailed("why")


def test_the_first_request_loads_and_is_granted_when_loaded() -> None:
    s = scheduler()
    effects = s.request(waiter(1, "a"))
    [start] = effects
    assert isinstance(start, Start)
    assert (as_local(start.spec).n_ctx, as_local(start.spec).n_threads) == (4096, 2)
    assert s.loaded(start.runner_id, 1.0) == [Grant(1, start.runner_id)]


@pytest.mark.contract("sched.loaded-free")
def test_a_request_for_a_loaded_model_passes_the_queue() -> None:
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
    assert as_local(second.spec).weights == "b"


def test_a_load_whose_first_request_was_cancelled_still_blocks_the_next_load() -> None:
    s = scheduler()
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "b"))
    s.request(waiter(3, "a"))
    assert s.release(1, 0.0) == []
    granted, start = s.loaded(runner_id, 0.0)
    assert granted == Grant(3, runner_id)
    assert isinstance(start, Start)


@pytest.mark.contract("sched.queue", "sched.loaded-free")
def test_a_full_queue_refuses_loads_but_serves_loaded_models() -> None:
    s = scheduler(max_queue=1)
    runner_id = load(s, waiter(1, "a"))
    started(s.request(waiter(2, "b")))
    assert s.request(waiter(3, "c")) == []
    [refused] = s.request(waiter(4, "d"))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.QueueFull)
    assert s.request(waiter(5, "a")) == [Grant(5, runner_id)]


@pytest.mark.contract("sched.eviction")
def test_the_idle_runner_with_the_shortest_session_is_unloaded_first() -> None:
    s = scheduler(max_loaded=2)
    load(s, waiter(1, "a", keep_alive_s=60.0))
    short = load(s, waiter(2, "b", keep_alive_s=30.0))
    s.release(1, 0.0)
    s.release(2, 0.0)
    assert s.request(waiter(3, "c")) == [Stop(short)]
    started(s.ended(short))


@pytest.mark.contract("sched.eviction")
def test_a_busy_runner_that_must_be_unloaded_accepts_no_new_requests() -> None:
    s = scheduler(max_loaded=1)
    runner_id = load(s, waiter(1, "a"))
    assert s.request(waiter(2, "b")) == []
    assert s.request(waiter(3, "a")) == []
    assert s.release(1, 0.0) == [Stop(runner_id)]
    started(s.ended(runner_id))


def test_the_busy_runner_accepts_requests_again_if_the_head_of_the_queue_is_cancelled() -> None:
    s = scheduler(max_loaded=1)
    runner_id = load(s, waiter(1, "a"))
    s.request(waiter(2, "b"))
    s.request(waiter(3, "a"))
    assert s.release(2, 0.0) == [Grant(3, runner_id)]


@pytest.mark.contract("sched.expiry")
def test_keep_alive_counts_from_the_end_of_the_last_use() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", keep_alive_s=10.0))
    assert s.next_expiry() == math.inf
    assert s.tick(1000.0) == []
    s.release(1, 1000.0)
    assert s.next_expiry() == 1010.0
    assert s.tick(1009.0) == []
    assert s.tick(1010.0) == [Stop(runner_id)]


@pytest.mark.contract("keep-alive.absent")
def test_a_request_without_keep_alive_keeps_the_runners() -> None:
    s = scheduler()
    load(s, waiter(1, "a", keep_alive_s=10.0))
    s.release(1, 0.0)
    s.request(waiter(2, "a"))
    s.release(2, 5.0)
    assert s.next_expiry() == 15.0


@pytest.mark.contract("keep-alive.zero")
def test_keep_alive_zero_unloads_right_after_the_request() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", keep_alive_s=0.0))
    assert s.release(1, 0.0) == [Stop(runner_id)]


@pytest.mark.contract("keep-alive.forever")
def test_an_infinite_keep_alive_never_expires() -> None:
    s = scheduler()
    load(s, waiter(1, "a", keep_alive_s=math.inf))
    s.release(1, 0.0)
    assert s.next_expiry() == math.inf
    assert s.tick(1e12) == []


def test_unload_waits_for_running_requests() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    assert s.unload("a", 0.0) == []
    assert s.release(1, 0.0) == [Stop(runner_id)]
    assert s.unload("unknown", 0.0) == []


def test_an_idle_model_is_unloaded_at_once() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    s.release(1, 0.0)
    assert s.unload("a", 0.0) == [Stop(runner_id)]


@pytest.mark.contract("sched.leave")
def test_cancel_while_queued_never_loads_the_model() -> None:
    s = scheduler()
    first = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "b"))
    assert s.release(2, 0.0) == []
    assert s.loaded(first, 0.0) == [Grant(1, first)]


@pytest.mark.contract("sched.leave")
def test_a_load_is_aborted_when_its_last_waiter_leaves() -> None:
    s = scheduler()
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "a"))
    assert s.release(1, 0.0) == []
    assert s.release(2, 0.0) == [Stop(runner_id)]
    assert s.loaded(runner_id, 0.0) == []
    assert s.ended(runner_id) == []


def test_a_failed_load_fails_all_its_waiters_and_no_others() -> None:
    s = scheduler()
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "b"))
    s.request(waiter(3, "a"))
    *refused, start = s.failed(runner_id, CRASH)
    assert refused == [Refuse(1, CRASH), Refuse(3, CRASH)]
    assert isinstance(start, Start)
    assert as_local(start.spec).weights == "b"


def test_a_crashed_engine_is_forgotten_and_the_next_request_loads_again() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    assert s.ended(runner_id) == []
    assert s.release(1, 0.0) == []
    assert started(s.request(waiter(2, "a"))) != runner_id


def test_a_model_under_unload_is_loaded_again_once_it_has_ended() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", keep_alive_s=0.0))
    s.release(1, 0.0)
    assert s.request(waiter(2, "a")) == []
    started(s.ended(runner_id))


def test_a_request_joins_a_load_under_way_although_another_is_queued_first() -> None:
    s = scheduler(max_loaded=1)
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "b"))
    s.request(waiter(3, "a"))
    assert s.loaded(runner_id, 0.0) == [Grant(1, runner_id), Grant(3, runner_id)]


def test_close_refuses_waiting_requests_and_keeps_only_engines_in_use() -> None:
    s = scheduler(max_loaded=3)
    used = load(s, waiter(1, "a"))
    idle = load(s, waiter(2, "b"))
    s.release(2, 0.0)
    loading = started(s.request(waiter(3, "c")))
    refused, *stops = s.close(0.0)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.ShuttingDown)
    assert stops == [Stop(idle), Stop(loading)]
    [late] = s.request(waiter(4, "a"))
    assert isinstance(late, Refuse)
    assert s.release(1, 0.0) == [Stop(used)]


def test_shutdown_stops_each_engine_once_even_if_in_use() -> None:
    s = scheduler()
    used = load(s, waiter(1, "a"))
    assert s.shutdown(0.0) == [Stop(used)]
    assert s.shutdown(0.0) == []
    assert s.release(1, 0.0) == []
