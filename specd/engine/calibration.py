"""The first measurements of a freshly loaded pair: the cost of passes of each width."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress

from specd.core import SamplingParams
from specd.engine.backend import Backend, Batch
from specd.engine.sampler import CoupledSampler, NonFiniteLogits
from specd.engine.speculative.controller import MAX_DRAFT
from specd.engine.speculative.cost_model import CostModel

#: Widths where kernels are known to change step, up to that of the controller's longest draft.
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, MAX_DRAFT + 1)
_REPEATS = 5
#: A pass this long is measured once, since noise is small beside it.
_LONG_S = 0.1
#: Widths that are always measured: without them no draft length can be judged.
_REQUIRED_WIDTHS = (1, 4)
#: Rows of history before the measured ones, so that attention has something to read.
_HISTORY = 8
_CATCH_UP = 16

Clock = Callable[[], float]


def calibrate(
    target: Backend,
    drafter: Backend | None,
    *,
    longest: int = MAX_DRAFT,
    budget_s: float = 2.5,
    clock: Clock = time.perf_counter,
) -> CostModel:
    """Measure for about budget_s seconds and return the costs.

    longest: longest draft in tokens.  Slot 0 is used and emptied.  Without a drafter, only plain
    passes are measured.
    """
    deadline = clock() + budget_s
    widest = longest + 1
    widths = {*(w for w in WIDTHS if w < widest), widest} if drafter is not None else {1}
    target_s: dict[int, float] = {}
    target_timer = _PassTimer(target, clock)
    # The ends come first: the widths that a tight budget leaves out can be interpolated.
    for width in sorted(widths, key=lambda w: (w not in _REQUIRED_WIDTHS, w != widest, w)):
        if width not in _REQUIRED_WIDTHS and clock() > deadline:
            break
        target_s[width] = target_timer.measure(width)
    target_timer.close()
    if drafter is None:
        return CostModel(target_s)
    drafter_timer = _PassTimer(drafter, clock)
    step_s = drafter_timer.measure(1)
    # A drafting pass reads one token anyway, so one of these tokens does not count as missed.
    catch_up_s = max(drafter_timer.measure(_CATCH_UP) - step_s, 0.0) / (_CATCH_UP - 1)
    drafter_timer.close()
    return CostModel(target_s, step_s, catch_up_s)


def has_finite_logits(backend: Backend) -> bool:
    """Run a first pass and return whether its logits are finite.  Slot 0 is used and emptied."""
    batch = Batch()
    batch.add(0, 0, 0, wants_logits=True)
    backend.decode(batch)
    peak = float(backend.row(0).max())  # NaN is the largest of all
    backend.rewind(0, 0)
    return math.isfinite(peak)


class _PassTimer:
    """A timer of passes on slot 0 of a backend, after a short history that attention can read."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._sampler = CoupledSampler(SamplingParams())
        self._n_past = 0
        # The first pass includes lazy set-up, so it is not timed.
        self._read(min(_HISTORY, backend.n_batch))

    def measure(self, width: int) -> float:
        """Return the seconds of the fastest of a few passes of that width, sampling included."""
        width = min(width, self._backend.n_batch)
        n_past, best = self._n_past, float("inf")
        for _ in range(_REPEATS):
            best = min(best, self._decode(width))
            self._n_past = self._backend.rewind(0, n_past)
            if self._n_past < n_past:
                # A recurrent state cannot be rewound by a whole pass: read the history again.
                self._read(n_past)
            if best > _LONG_S:
                break
        return best

    def _read(self, n_tokens: int) -> None:
        """Read n_tokens of history; only the last row has logits, as in a prompt."""
        batch = Batch()
        for i in range(n_tokens):
            token, ends = i % self._backend.n_vocab, i == n_tokens - 1
            batch.add(token, self._n_past + i, 0, wants_logits=ends)
        self._backend.decode(batch)
        self._n_past += n_tokens

    def _decode(self, width: int) -> float:
        batch = Batch()
        for i in range(width):
            batch.add(i % self._backend.n_vocab, self._n_past + i, 0, wants_logits=True)
        began = self._clock()
        self._backend.decode(batch)
        for i in range(width):
            with suppress(NonFiniteLogits):  # requests report it; here only the time counts
                self._sampler.sample(self._backend.row(i), (), i)
        self._n_past += width
        return self._clock() - began

    def close(self) -> None:
        self._backend.rewind(0, 0)
