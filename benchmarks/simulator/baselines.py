"""Compute the baselines of a policy: the best single length, the oracle, the clairvoyant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from benchmarks.simulator.curves import Curve
from benchmarks.simulator.fixed_policy import PolicyRun, fixed_length_run
from benchmarks.simulator.oracle import Oracle
from benchmarks.simulator.positions import lookup_guesses
from benchmarks.simulator.trace import Answer
from specd.engine.speculative.controller import MAX_DRAFT

LENGTHS = range(MAX_DRAFT + 1)


class Clairvoyant:
    """A policy that knows at every position which guesses are right.

    No policy can be faster.
    """

    def __init__(self, answer: Answer, curve: Curve) -> None:
        n = len(answer.tokens)
        passes = [curve.target_ns(1 + k) for k in LENGTHS]
        drafts = [curve.draft_ns(k, 0) for k in LENGTHS]
        best: list[int] = [0, 0, *[1 << 62] * (n - 1)]
        for at in range(1, n):
            n_model, n_found = answer.n_right(at, n), lookup_guesses(answer)[at].n_right
            for k in range(min(max(n_model, n_found), n - at - 1) + 1):
                drafting = 0 if k <= n_found else drafts[k]
                best[at + k + 1] = min(best[at + k + 1], best[at] + drafting + passes[k])
            k = n_model + 1
            if k <= MAX_DRAFT and at + k < n and answer.second_right[at + n_model]:
                # A sibling in the last place; its second evaluation is not counted.
                best[at + k + 1] = min(best[at + k + 1], best[at] + drafts[k] + passes[k])
        self._best = best

    def ns(self, end: int) -> int:
        return self._best[end]


class Baselines:
    """The baselines for the answers of one pair at one temperature under one curve."""

    def __init__(self, answers: Sequence[Answer], curve: Curve) -> None:
        self.oracle = Oracle(answers, curve)
        self._curve = curve
        self._fixed: dict[tuple[Answer, int], PolicyRun] = {}
        self._clairvoyant: dict[Answer, Clairvoyant] = {}

    def fixed_ns(self, answer: Answer, end: int, length: int) -> int:
        key = answer, length
        if key not in self._fixed:
            self._fixed[key] = fixed_length_run(answer, self._curve, length)
        return self._fixed[key].ns(end)

    def oracle_ns(self, answer: Answer, end: int) -> int:
        return self.oracle.ns(answer, end)

    def clairvoyant_ns(self, answer: Answer, end: int) -> int:
        if answer not in self._clairvoyant:
            self._clairvoyant[answer] = Clairvoyant(answer, self._curve)
        return self._clairvoyant[answer].ns(end)


@lru_cache(maxsize=2)
def baselines(answers: tuple[Answer, ...], curve: Curve) -> Baselines:
    """Return the baselines of a cell; consecutive calls for one cell share the result."""
    return Baselines(answers, curve)
