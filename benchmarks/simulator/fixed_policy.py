"""Compute the time of an answer under a rule that depends only on the position.

Such a rule needs no engine: each step follows from its first position.  A test checks that the sums
equal the engine's to the nanosecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from benchmarks.simulator.curves import Curve
from benchmarks.simulator.trace import Answer
from specd.engine.speculative.controller import MAX_DRAFT


class Step(NamedTuple):
    """One step of a rule.

    n_drafted, n_right: tokens that the model drafts, and how many of these are right.
    n_sent: tokens that are verified.  n_accepted: accepted ones.  is_found: whether they come from
    prompt lookup.
    """

    n_drafted: int = 0
    n_right: int = 0
    n_sent: int = 0
    n_accepted: int = 0
    is_found: bool = False

    def cut_to(self, n_left: int) -> Step:
        """Return the step when n_left tokens are left, whose end the draft predicts."""
        if min(self.n_right, self.n_drafted) < n_left:
            return self
        n_sent = self.n_sent if self.is_found else min(self.n_sent, n_left)
        return Step(n_left, n_left, n_sent, min(self.n_accepted, n_sent), self.is_found)


class PolicyRun:
    """One answer under one rule, to its recorded end."""

    def __init__(
        self, answer: Answer, curve: Curve, rule: Callable[[int], Step], n_read: int = 0
    ) -> None:
        """Compute all steps.

        rule: position of the next token → step.  n_read: prompt tokens that the drafter has already
        read.
        """
        self._n_prompt = n_prompt = len(answer.prompt)
        self._costs = costs = _costs(curve)
        self._starts: list[int] = []
        self._steps: list[Step] = []
        #: Before each step: nanoseconds so far, and tokens that the drafter has read.
        self._before: list[tuple[int, int]] = []
        at, ns, n_tokens = 1, 0, len(answer.tokens)
        while at < n_tokens:
            step = rule(at)
            self._starts.append(at)
            self._steps.append(step)
            self._before.append((ns, n_read))
            n_history = n_prompt + at
            ns += costs.step_ns(step, n_history - 1 - n_read)
            if step.n_drafted:
                n_read = n_history + min(step.n_drafted - 1, step.n_accepted)
            at += step.n_accepted + 1

    def ns(self, end: int) -> int:
        """Return the nanoseconds of the answer's first `end` tokens, the last of which ends it."""
        last = bisect_left(self._starts, end) - 1
        at, step = self._starts[last], self._steps[last]
        ns, n_read = self._before[last]
        return ns + self._costs.step_ns(step.cut_to(end - at), self._n_prompt + at - 1 - n_read)


class _Costs:
    """A curve's costs as lists, because every step looks them up."""

    def __init__(self, curve: Curve) -> None:
        self._target_ns = [curve.target_ns(1 + n) for n in range(MAX_DRAFT + 1)]
        self._draft_ns, self._read_ns = curve.draft_ns(1, 0), curve.draft_ns(0, 1)

    def step_ns(self, step: Step, n_missed: int) -> int:
        """Return the nanoseconds of a step.  n_missed: tokens the drafter must read before it
        drafts.
        """
        passes_ns = self._target_ns[step.n_sent]
        if step.n_drafted:
            passes_ns += step.n_drafted * self._draft_ns + n_missed * self._read_ns
        return passes_ns


_costs = cache(_Costs)


def fixed_length_run(answer: Answer, curve: Curve, length: int) -> PolicyRun:
    """Return the run that drafts and sends `length` tokens at every step; 0 is plain decoding."""
    return PolicyRun(answer, curve, lambda at: fixed_length_step(answer, length, at))


def fixed_length_step(answer: Answer, length: int, at: int) -> Step:
    """Return the step of a fixed length at that position, far from the answer's end."""
    if not length:
        return Step()
    n_right, n_drafted = answer.n_drafted(at)
    n = min(length, n_drafted)
    return Step(n, n_right, n, min(n_right, n))
