"""The part of a request's wait that was a load."""

from __future__ import annotations

import pytest

from specd.scheduler.load_times import _MAX_MODELS, LoadTimes


@pytest.mark.parametrize(
    "since,now,load_s",
    [
        (0.0, 5.0, 0.0),  # before it
        (0.0, 12.0, 2.0),
        (11.0, 12.0, 1.0),
        (11.0, 30.0, 9.0),
        (25.0, 30.0, 0.0),  # after it
    ],
)
def test_load_time_counts_only_the_part_of_a_wait_during_the_load(
    since: float, now: float, load_s: float
) -> None:
    loads = LoadTimes()
    loads.load_started("m", 10.0)
    if now > 20.0:
        assert loads.load_ended("m", 20.0) == 10.0
    assert loads.load_time_between("m", since, now) == load_s
    assert loads.load_time_between("other", since, now) == 0.0


def test_the_last_load_counts_and_old_ones_are_forgotten() -> None:
    loads = LoadTimes()
    loads.load_started("m", 1.0)
    loads.load_ended("m", 2.0)
    loads.load_started("m", 5.0)
    assert loads.load_time_between("m", 0.0, 6.0) == 1.0
    for number in range(_MAX_MODELS):
        loads.load_started(str(number), 7.0)
    assert loads.load_time_between("m", 0.0, 9.0) == 0.0
    assert loads.load_ended("m", 9.0) == 0.0


def test_a_model_that_loads_again_is_one_of_the_latest() -> None:
    loads = LoadTimes()
    for number in range(_MAX_MODELS):
        loads.load_started(str(number), 1.0)
    loads.load_started("0", 2.0)
    loads.load_started("another", 3.0)
    assert loads.load_time_between("0", 0.0, 9.0) == 7.0
    assert loads.load_time_between("1", 0.0, 9.0) == 0.0
