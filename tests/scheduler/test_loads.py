"""What of a wait was a load."""

from __future__ import annotations

import pytest

from specd.scheduler.loads import _MOST, Loads


@pytest.mark.parametrize(
    "since,now,within",
    [
        (0.0, 5.0, 0.0),  # before it
        (0.0, 12.0, 2.0),
        (11.0, 12.0, 1.0),
        (11.0, 30.0, 9.0),
        (25.0, 30.0, 0.0),  # after it
    ],
)
def test_only_the_part_of_a_wait_in_which_the_model_was_loading(
    since: float, now: float, within: float
) -> None:
    loads = Loads()
    loads.begins("m", 10.0)
    if now > 20.0:
        assert loads.ends("m", 20.0) == 10.0
    assert loads.within("m", since, now) == within
    assert loads.within("other", since, now) == 0.0


def test_the_last_load_counts_and_old_ones_are_forgotten() -> None:
    loads = Loads()
    loads.begins("m", 1.0)
    loads.ends("m", 2.0)
    loads.begins("m", 5.0)
    assert loads.within("m", 0.0, 6.0) == 1.0
    for number in range(_MOST):
        loads.begins(str(number), 7.0)
    assert loads.within("m", 0.0, 9.0) == 0.0
    assert loads.ends("m", 9.0) == 0.0


def test_a_model_that_loads_again_is_one_of_the_latest() -> None:
    loads = Loads()
    for number in range(_MOST):
        loads.begins(str(number), 1.0)
    loads.begins("0", 2.0)
    loads.begins("another", 3.0)
    assert loads.within("0", 0.0, 9.0) == 7.0
    assert loads.within("1", 0.0, 9.0) == 0.0
