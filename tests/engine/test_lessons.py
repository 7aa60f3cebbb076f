"""When the daemon is told what was learned."""

from __future__ import annotations

import pytest

from specd.core import BandHistory, PairHistory
from specd.engine.lessons import EVERY_S, Lessons, believable
from specd.ipc.messages import Learned


class Pupil:
    """Learns by counting, and keeps its own time."""

    def __init__(self) -> None:
        self.n_requests = 0
        self.now = 0.0
        self.said: list[Learned] = []
        self.lessons = Lessons(self.history, "CPU", self.said.append, lambda: self.now)

    def history(self) -> PairHistory:
        return PairHistory(bands=(BandHistory(drafter="m", band=0, n_requests=self.n_requests),))

    @property
    def heard(self) -> list[int]:
        assert {learned.history.device for learned in self.said} <= {"CPU"}
        return [learned.history.bands[0].n_requests for learned in self.said]


def test_an_idle_engine_says_at_once_what_is_new_and_only_that() -> None:
    pupil = Pupil()
    pupil.lessons.say(busy=False)
    assert pupil.heard == []
    for n in (1, 2):
        pupil.n_requests = n
        pupil.lessons.say(busy=False)
        pupil.lessons.say(busy=False)
    assert pupil.heard == [1, 2]


def test_a_busy_engine_says_it_now_and_then() -> None:
    pupil = Pupil()
    for n in range(1, 25):
        pupil.n_requests = n
        pupil.now += EVERY_S / 8
        pupil.lessons.say(busy=True)
    assert pupil.heard == [8, 16, 24]


@pytest.mark.parametrize("device,believed", [("CPU", True), ("CUDA0", False), ("", False)])
def test_a_history_is_believed_on_its_own_device_alone(device: str, believed: bool) -> None:
    history = PairHistory(device="CPU")
    assert believable(history, device) == (history if believed else None)
    assert believable(None, device) is None
