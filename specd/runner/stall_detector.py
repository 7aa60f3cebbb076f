"""When an engine that owes something is given up: by how often it was looked at, not by a clock.

A look that comes late counts as one.  So it does where the daemon itself was stopped, where the
machine slept or its clock was set, and where the processors were busy with others: in that time the
engine may have had no chance either, and what it said meanwhile has not been read yet.

Only SIGSTOP is found out sooner than by the limit.  That a process uses no processor time proves
nothing: it may wait for a GPU that is at work, which blocks in the driver without any, or for a
page of its weights from a slow disk.  One that is stopped computes nothing whatever it waits for,
and nothing but another signal wakes it; the pauses that a system makes (a frozen cgroup, a laptop
that sleeps) are other states, and a debugger's is another too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: Seconds between two looks, at most.
CHECK_INTERVAL_S = 5.0
#: Looks within the limit, at least.
CHECKS_PER_LIMIT = 10
#: How long a process may be stopped while it owes something, in looks of `LOOK_S`.
MAX_STOPPED_CHECKS = 6


class StallDetector:
    """limit_s: how long nothing may move; inf is for ever.  is_stopped: whether SIGSTOP was."""

    def __init__(self, limit_s: float, is_stopped: Callable[[], bool]) -> None:
        self.check_interval_s = min(limit_s / CHECKS_PER_LIMIT, CHECK_INTERVAL_S)
        self._limit_s = limit_s
        self._is_stopped = is_stopped
        self._n_stalled = self._n_stopped = 0

    def check(self, *, has_progressed: bool) -> str:
        """Why it is over, or "".  Call it every `look_s`; moved: anything, since the last time."""
        if has_progressed or math.isinf(self._limit_s):
            self._n_stalled = self._n_stopped = 0
            return ""
        self._n_stalled += 1
        self._n_stopped = self._n_stopped + 1 if self._is_stopped() else 0
        if self._n_stopped >= MAX_STOPPED_CHECKS:
            return f"it was stopped by a signal for {self._n_stopped * self.check_interval_s:.0f} s"
        if self._n_stalled * self.check_interval_s >= self._limit_s * (1 - 1e-9):
            return f"nothing in it moved for {self._limit_s:g} s"
        return ""
