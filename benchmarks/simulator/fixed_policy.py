"""The time that an answer takes under a rule that looks at nothing but the position.

Such rules need no engine: each step follows from where it begins.  The sums are the engine's own,
to the nanosecond, which a test holds against it.
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
    """n_drafted, n_right: by the model, and how many of these are right.

    n_sent: tokens that are verified.  n_accepted: those that are kept.  is_found: they are prompt
    lookup's, not the model's.
    """

    n_drafted: int = 0
    n_right: int = 0
    n_sent: int = 0
    n_accepted: int = 0
    is_found: bool = False

    def cut_to(self, n_left: int) -> Step:
        """The same where the answer has so many tokens left, and the draft foresees its end."""
        if min(self.n_right, self.n_drafted) < n_left:
            return self
        n_sent = self.n_sent if self.is_found else min(self.n_sent, n_left)
        return Step(n_left, n_left, n_sent, min(self.n_accepted, n_sent), self.is_found)


class PolicyRun:
    """One answer under one rule, as far as it was recorded."""

    def __init__(
        self, answer: Answer, curve: Curve, rule: Callable[[int], Step], n_read: int = 0
    ) -> None:
        """rule: position of the next token → what is done there.

        n_read: tokens of the prompt that the drafter has read before.
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
        """Nanoseconds of the answer's first `end` tokens, the last of which ends it."""
        last = bisect_left(self._starts, end) - 1
        at, step = self._starts[last], self._steps[last]
        ns, n_read = self._before[last]
        return ns + self._costs.step_ns(step.cut_to(end - at), self._n_prompt + at - 1 - n_read)


class _Costs:
    """A curve's prices as lists: they are asked for at every step of every walk."""

    def __init__(self, curve: Curve) -> None:
        self._target_ns = [curve.target_ns(1 + n) for n in range(MAX_DRAFT + 1)]
        self._draft_ns, self._read_ns = curve.draft_ns(1, 0), curve.draft_ns(0, 1)

    def step_ns(self, step: Step, n_missed: int) -> int:
        """Nanoseconds of a step.  n_missed: tokens that the drafter must read if it drafts."""
        passes_ns = self._target_ns[step.n_sent]
        if step.n_drafted:
            passes_ns += step.n_drafted * self._draft_ns + n_missed * self._read_ns
        return passes_ns


_costs = cache(_Costs)


def fixed_length_run(answer: Answer, curve: Curve, length: int) -> PolicyRun:
    """Draft so many tokens at every step, and send them all; 0 is plain decoding."""
    return PolicyRun(answer, curve, lambda at: fixed_length_step(answer, length, at))


def fixed_length_step(answer: Answer, length: int, at: int) -> Step:
    """What that rule does where the next token is at that position, far from the answer's end."""
    if not length:
        return Step()
    n_right, n_drafted = answer.n_drafted(at)
    n = min(length, n_drafted)
    return Step(n, n_right, n, min(n_right, n))
