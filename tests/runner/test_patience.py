"""When an engine is given up: counted in looks."""

from __future__ import annotations

import math

import pytest

from specd.runner.patience import LOOK_S, N_STOPPED, Patience


def n_looks(patience: Patience, most: int = 1000) -> int:
    """Looks without a move until it is given up."""
    return next(n for n in range(1, most) if patience.look(moved=False))


@pytest.mark.parametrize("limit_s", [0.01, 1.0, 7.0, 50.0, 300.0, 301.0])
def test_nothing_moves_for_the_limit_and_no_less(limit_s: float) -> None:
    patience = Patience(limit_s, lambda: False)
    n = n_looks(patience)
    assert n >= 10
    assert (n - 1) * patience.look_s < limit_s <= n * patience.look_s * (1 + 1e-6)
    assert patience.look_s <= LOOK_S


def test_a_move_begins_it_anew() -> None:
    patience = Patience(10.0, lambda: False)
    for _ in range(9):
        assert not patience.look(moved=False)
    assert not patience.look(moved=True)
    assert n_looks(patience) == 10


def test_one_that_is_stopped_is_given_up_sooner() -> None:
    patience = Patience(300.0, lambda: True)
    said = [patience.look(moved=False) for _ in range(N_STOPPED)]
    assert said == [""] * (N_STOPPED - 1) + ["it was stopped by a signal for 30 s"]


def test_one_that_was_stopped_and_goes_on_is_not_given_up() -> None:
    """A daemon that was stopped with its engine, and wakes first, sees it stopped just once."""
    stopped = iter([True] * (N_STOPPED - 1) + [False] + [True] * N_STOPPED)
    assert n_looks(Patience(300.0, lambda: next(stopped))) == 2 * N_STOPPED


def test_for_ever_is_for_ever() -> None:
    patience = Patience(math.inf, lambda: True)
    assert not any(patience.look(moved=False) for _ in range(1000))
