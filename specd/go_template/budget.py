"""Limits of a rendering: number of steps, and CPU time of its thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: Statements and calls, plus the size of what they read and write.
MAX_STEPS: Final = 1_000_000
#: CPU time of the thread, so that a busy machine does not make templates fail.
MAX_CPU_S: Final = 2.0

_CHARACTERS_PER_STEP: Final = 64
_ITEMS_PER_STEP: Final = 1024
_STEPS_BETWEEN_LOOKS: Final = 1000


def cost(value: object) -> int:
    """Return the steps for reading or writing a value, by its size."""
    match value:
        case str():
            return len(value) // _CHARACTERS_PER_STEP
        case list() | dict():
            return len(value) // _ITEMS_PER_STEP
        case _:
            return 0


class Budget:
    """Budget of one rendering or one chat, for use in the thread that creates it.

    cpu_s: clock of the CPU time of that thread, seconds.
    """

    def __init__(
        self, *, max_steps: int = MAX_STEPS, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._steps_left = max_steps
        self._next_look = max_steps - _STEPS_BETWEEN_LOOKS
        self._cpu_s = cpu_s
        self._end_s = cpu_s() + MAX_CPU_S

    def spend(self, n_steps: int) -> str:
        """Return the error if the budget is exceeded, else ""."""
        self._steps_left -= n_steps
        if self._steps_left < 0:
            return "the template takes too many steps"
        if self._steps_left < self._next_look:
            self._next_look = self._steps_left - _STEPS_BETWEEN_LOOKS
            if self._cpu_s() > self._end_s:
                return "the template takes too long"
        return ""
