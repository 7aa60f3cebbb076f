"""Reports of the controller's statistics to the daemon, which saves them across restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from specd.core import PairHistory
from specd.ipc.messages import PairHistoryUpdate

#: Seconds between two reports while requests run.
REPORT_INTERVAL_S: Final = 1.0


class HistoryReporter:
    """A reporter that emits the history of a pair when it has changed."""

    def __init__(
        self,
        history: Callable[[], PairHistory],
        device: str,
        emit: Callable[[PairHistoryUpdate], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Note the current history as reported.

        device: the device that holds the target.  clock: monotonic seconds.
        """
        self._history = history
        self._device = device
        self._emit = emit
        self._clock = clock
        self._reported = self._current_history()
        self._reported_at = clock()

    def report_changes(self, *, is_busy: bool) -> None:
        """Emit the history if it changed: at once if idle, else every REPORT_INTERVAL_S.

        Call it after each step, and before the process ends.
        """
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
    """Return the history, or None if another device made it, where gains are different."""
    return history if history is not None and history.device == device else None
