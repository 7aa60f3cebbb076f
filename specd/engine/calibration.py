"""The first measurements of a freshly loaded pair: what passes of each width cost here."""

from __future__ import annotations

import time
from collections.abc import Callable

from specd.core import SamplingParams
from specd.engine.backend import Backend, Batch
from specd.engine.sampler import CoupledSampler
from specd.engine.speculative.controller import MAX_DRAFT
from specd.engine.speculative.cost_model import CostModel

#: Widths where kernels are known to change step, and the longest draft the controller makes.
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, MAX_DRAFT + 1)
_REPEATS = 3
#: Rows of history under the measured ones, so that attention has something to read.
_HISTORY = 16
_CATCH_UP = 16

Clock = Callable[[], float]


def calibrate(
    target: Backend,
    drafter: Backend | None,
    *,
    budget_s: float = 2.0,
    clock: Clock = time.perf_counter,
) -> CostModel:
    """Measure within about budget_s; widths left over are interpolated and learned in use.

    Slot 0 is used and emptied.  Without a drafter only plain passes are measured.
    """
    deadline = clock() + budget_s
    widths = WIDTHS if drafter is not None else (1,)
    target_s: dict[int, float] = {}
    _measure(target, 1, clock, 1)  # The first pass ever pays for lazy set-up.
    # Outwards from what is used most, so that a tight budget still knows the ends.
    for width in sorted(widths, key=lambda w: (w not in (1, 4, MAX_DRAFT + 1), w)):
        if target_s and clock() > deadline:
            break
        target_s[width] = _measure(target, width, clock, _REPEATS)
    if drafter is None:
        return CostModel(target_s)
    _measure(drafter, 1, clock, 1)
    step_s = _measure(drafter, 1, clock, _REPEATS)
    catch_up_s = max(_measure(drafter, _CATCH_UP, clock, _REPEATS) - step_s, 0.0) / _CATCH_UP
    return CostModel(target_s, step_s, catch_up_s)


def _measure(backend: Backend, width: int, clock: Clock, repeats: int) -> float:
    """Seconds of the fastest of some passes of that width, drawing a token from each row."""
    sampler = CoupledSampler(SamplingParams())
    width = min(width, backend.n_batch)
    history = Batch()
    for position in range(min(_HISTORY, backend.n_batch)):
        history.add(position % backend.n_vocab, position, 0, wants_logits=False)
    backend.decode(history)
    best = float("inf")
    for _ in range(repeats):
        batch = Batch()
        for i in range(width):
            batch.add(i % backend.n_vocab, len(history) + i, 0, wants_logits=True)
        began = clock()
        backend.decode(batch)
        for i in range(width):
            sampler.sample(backend.row(i), (), i)
        best = min(best, clock() - began)
        backend.rewind(0, len(history) if backend.can_rewind else 0)
        if not backend.can_rewind:
            backend.decode(history)
    backend.rewind(0, 0)
    return best
