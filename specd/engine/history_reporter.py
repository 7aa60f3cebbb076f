"""When the daemon hears what the controller learned: what is not said dies with the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from specd.core import PairHistory
from specd.ipc.messages import PairHistoryUpdate

#: Seconds between two lessons while requests run.
REPORT_INTERVAL_S: Final = 1.0


class HistoryReporter:
    """device: where the target lies.  clock: monotonic seconds."""

    def __init__(
        self,
        history: Callable[[], PairHistory],
        device: str,
        emit: Callable[[PairHistoryUpdate], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history = history
        self._device = device
        self._emit = emit
        self._clock = clock
        self._reported = self._current_history()
        self._reported_at = clock()

    def report_changes(self, *, is_busy: bool) -> None:
        """After a step, and before the end: what is new, at once when idle, else now and then."""
        now = self._clock()
        if is_busy and now - self._reported_at < REPORT_INTERVAL_S:
            return
        newest = self._current_history()
        if newest != self._reported:
            self._reported, self._reported_at = newest, now
            self._emit(PairHistoryUpdate(newest))

    def _current_history(self) -> PairHistory:
        return replace(self._history(), device=self._device)


def history_for_device(history: PairHistory | None, device: str) -> PairHistory | None:
    """None where it was learned on another device: gains are of another kind there."""
    return history if history is not None and history.device == device else None
