"""The real engine over real models, with a clock that only a given cost curve advances.

`python -m tests.fakes.timed_engine CURVE --fd N`, with a curve of benchmarks/simulator/curves.py.
Such an engine measures and decides the same on every machine, even a busy one.
"""

from __future__ import annotations

import runpy
import sys
import time
from typing import Any


class Clock:
    """A clock that advances only when `now_ns` is changed."""

    def __init__(self) -> None:
        self.now_ns = 0

    def seconds(self) -> float:
        return self.now_ns * 1e-9

    def nanoseconds(self) -> int:
        return self.now_ns


def set_clock(name: str) -> None:
    """Let each pass in this process take the time that the named curve gives."""
    clock = Clock()
    # Before the engine is imported: its functions take these as the defaults of their clocks.
    time.perf_counter, time.perf_counter_ns = clock.seconds, clock.nanoseconds

    from benchmarks.simulator.curves import curve  # noqa: PLC0415 - see above
    from specd.engine import loader  # noqa: PLC0415
    from specd.engine.backend import Batch  # noqa: PLC0415
    from specd.engine.llama.context import LlamaContext  # noqa: PLC0415

    costs = curve(name)

    class TimedContext(LlamaContext):
        def __init__(self, *args: Any, n_ahead: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, n_ahead=n_ahead, **kwargs)
            self._is_drafter = n_ahead > 0

        def decode(self, batch: Batch) -> None:
            super().decode(batch)
            n_rows = sum(batch.wants_logits)
            if self._is_drafter:
                clock.now_ns += costs.draft_ns(1, len(batch) - n_rows)
            else:
                clock.now_ns += costs.target_ns(max(n_rows, 1))

    vars(loader)["LlamaContext"] = TimedContext  # which has no other seam


if __name__ == "__main__":
    curve_name = sys.argv.pop(1)
    if "--fd" in sys.argv:
        set_clock(curve_name)
    runpy.run_module("specd.engine", run_name="__main__", alter_sys=True)
