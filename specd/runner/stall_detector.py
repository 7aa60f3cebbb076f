"""Detect an engine that makes no progress, by counting checks instead of reading a clock.

A check that comes late counts once.  It is late if the daemon was stopped, the machine slept, its
clock was set, or the processors were busy.  In that time the engine may not have run either, and
its messages have not been read yet.

Only SIGSTOP is detected before the limit.  A process that uses no processor time need not be
stuck: it may wait for a GPU, which blocks in the driver, or for weights from a slow disk.  A
stopped process computes nothing until another signal wakes it.  A frozen cgroup, a sleeping laptop
and a debugger leave a process in other states.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: Most seconds between two checks.
CHECK_INTERVAL_S = 5.0
#: Least number of checks within the limit.
CHECKS_PER_LIMIT = 10
#: Number of checks in a row that a process with pending work may be stopped.
MAX_STOPPED_CHECKS = 6


class StallDetector:
    """Counts the checks of one process without progress.

    limit_s: longest time without progress; inf for no limit.
    is_stopped: returns whether SIGSTOP has stopped the process.
    """

    def __init__(self, limit_s: float, is_stopped: Callable[[], bool]) -> None:
        self.check_interval_s = min(limit_s / CHECKS_PER_LIMIT, CHECK_INTERVAL_S)
        self._limit_s = limit_s
        self._is_stopped = is_stopped
        self._n_stalled = self._n_stopped = 0

    def check(self, *, has_progressed: bool) -> str:
        """Return why the process is stuck, or "".  Call it every `check_interval_s` seconds.

        has_progressed: whether there was progress since the last call.
        """
        if has_progressed or math.isinf(self._limit_s):
            self._n_stalled = self._n_stopped = 0
            return ""
        self._n_stalled += 1
        self._n_stopped = self._n_stopped + 1 if self._is_stopped() else 0
        if self._n_stopped >= MAX_STOPPED_CHECKS:
            return f"it was stopped by a signal for {self._n_stopped * self.check_interval_s:.0f} s"
        if self._n_stalled * self.check_interval_s >= self._limit_s * (1 - 1e-9):
            return f"it made no progress for {self._limit_s:g} s"
        return ""
