"""Thousands of waiting requests: the cost of one event does not grow with their number."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from specd import core
from specd.errors import QueueFull
from specd.scheduler import Requirements, Scheduler
from specd.scheduler.effects import Grant, Refuse
from tests.scheduler.factories import SMALL, Roomy, load, scheduler, started, waiter

N = 2000


class Counted:
    """A scheduler that counts the waiters that it examines."""

    def __init__(self) -> None:
        self.n = 0
        requirements = Requirements(fill=self._fill, min_automatic_ctx=SMALL.min_ctx)
        self.scheduler = Roomy(requirements, max_loaded=2, max_queue=10 * N, default_keep_alive_s=9)

    def _fill(self, spec: core.EngineSpec, n_ctx_train: int) -> core.EngineSpec:
        self.n += 1
        return SMALL.fill(spec, n_ctx_train)


def leave_in_order(s: Scheduler, ids: list[int]) -> None:
    for waiter_id in ids:
        s.release(waiter_id, 0.0)


def leave_from_behind(s: Scheduler, ids: list[int]) -> None:
    leave_in_order(s, ids[::-1])


def leave_anyhow(s: Scheduler, ids: list[int]) -> None:
    random.Random(1).shuffle(ids)
    leave_in_order(s, ids)


@pytest.mark.parametrize("release", [leave_in_order, leave_from_behind, leave_anyhow])
def test_thousands_of_requests_wait_and_are_cancelled(
    release: Callable[[Scheduler, list[int]], None],
) -> None:
    counted = Counted()
    s = counted.scheduler
    started(s.request(waiter(1, "a")))
    for n in range(2, N):
        assert s.request(waiter(n, "a" if n % 2 else "b")) == []
    release(s, list(range(2, N)))
    assert [who.id for who in s.waiting()] == [1]
    assert counted.n < 20 * N


def test_thousands_of_requests_wait_for_a_busy_model_to_be_unloaded() -> None:
    counted = Counted()
    s = counted.scheduler
    first, second = load(s, waiter(1, "a")), load(s, waiter(2, "b"))
    for n in range(3, N):
        assert s.request(waiter(n, "c" if n % 2 else "a")) == []  # "a" must be unloaded for "c"
    for n in range(3, N, 2):
        s.release(n, 0.0)
    assert counted.n < 20 * N
    assert s.waiting() == []
    users = {runner.id: runner.users for runner in s.runners()}
    assert users == {first: {1, *range(4, N, 2)}, second: {2}}


def test_waiting_requests_are_served_in_their_order() -> None:
    s = scheduler(max_queue=N)
    runner_id = started(s.request(waiter(0, "a")))
    for n in range(1, N):
        s.request(waiter(n, "a"))
    assert s.loaded(runner_id, 0.0) == [Grant(n, runner_id) for n in range(N)]


def test_a_queue_with_a_lower_limit_keeps_the_requests_in_it() -> None:
    s = scheduler(max_queue=9)
    runner_id = started(s.request(waiter(1, "a")))
    s.request(waiter(2, "a"))
    assert s.adjust(max_queue=1, default_keep_alive_s=7.0) == []
    [refused] = s.request(waiter(3, "a"))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, QueueFull)
    assert s.loaded(runner_id, 0.0) == [Grant(1, runner_id), Grant(2, runner_id)]
    assert load(s, waiter(4, "b")) != runner_id
    assert {r.key: r.keep_alive_s for r in s.runners()} == {"a": 300.0, "b": 7.0}
