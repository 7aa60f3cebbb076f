"""What a rendering may cost: its steps, and the time of the thread that takes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: Statements and calls; what they read and write counts, too.
MAX_STEPS: Final = 1_000_000
#: Of the thread itself, so that a machine that is busy with others fails no template.
MAX_CPU_S: Final = 2.0

_CHARACTERS_PER_STEP: Final = 64
_ITEMS_PER_STEP: Final = 1024
_STEPS_BETWEEN_LOOKS: Final = 1000


def cost(value: object) -> int:
    """Steps that it takes to read a value, or to write it: texts are encoded, lists copied."""
    match value:
        case str():
            return len(value) // _CHARACTERS_PER_STEP
        case list() | dict():
            return len(value) // _ITEMS_PER_STEP
        case _:
            return 0


class Budget:
    """Of one rendering, or of all that a chat takes.  Belongs to the thread that makes it.

    cpu_s: a clock of that thread, which is looked at from step to step.
    """

    def __init__(
        self, *, max_steps: int = MAX_STEPS, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._steps_left = max_steps
        self._next_look = max_steps - _STEPS_BETWEEN_LOOKS
        self._cpu_s = cpu_s
        self._end_s = cpu_s() + MAX_CPU_S

    def spend(self, n_steps: int) -> str:
        """What there is to complain of, "" for nothing."""
        self._steps_left -= n_steps
        if self._steps_left < 0:
            return "the template takes too many steps"
        if self._steps_left < self._next_look:
            self._next_look = self._steps_left - _STEPS_BETWEEN_LOOKS
            if self._cpu_s() > self._end_s:
                return "the template takes too long"
        return ""
