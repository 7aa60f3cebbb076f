"""When the daemon hears what the controller learned: what is not said dies with the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from specd.core import PairHistory
from specd.ipc.messages import Learned

#: Seconds between two lessons while requests run.
EVERY_S: Final = 1.0


class Lessons:
    """device: where the target lies.  clock: monotonic seconds."""

    def __init__(
        self,
        history: Callable[[], PairHistory],
        device: str,
        emit: Callable[[Learned], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history = history
        self._device = device
        self._emit = emit
        self._clock = clock
        self._said = self._newest()
        self._said_at = clock()

    def say(self, *, busy: bool) -> None:
        """After a step, and before the end: what is new, at once when idle, else now and then."""
        now = self._clock()
        if busy and now - self._said_at < EVERY_S:
            return
        newest = self._newest()
        if newest != self._said:
            self._said, self._said_at = newest, now
            self._emit(Learned(newest))

    def _newest(self) -> PairHistory:
        return replace(self._history(), device=self._device)


def believable(history: PairHistory | None, device: str) -> PairHistory | None:
    """None where it was learned on another device: gains are of another kind there."""
    return history if history is not None and history.device == device else None
