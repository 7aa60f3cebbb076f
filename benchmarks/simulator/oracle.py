"""Compute the policy that knows the true probability of every confidence at every depth.

It uses the controller's rule (docs/speculation.md) and has nothing left to learn.  The
probabilities are counted over the same answers that it is judged on, and λ is the one of a few
rates that makes them fastest.  It does not know how requests differ, so a policy that learns this
can be faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulator.curves import PLAIN_NS, Curve
from benchmarks.simulator.fixed_policy import PolicyRun, Step
from benchmarks.simulator.positions import Floats, Guesses, Ints, drafted, looked_up
from benchmarks.simulator.trace import Answer
from specd.engine.speculative.controller import MAX_DRAFT

#: The rates tried for λ, in tokens per plain pass.
_RATES = (1.0, 1.2, 1.45, 1.75, 2.1, 2.5, 3.0, 3.6, 4.5, 6.0)


class Oracle:
    """The oracle for the answers of one pair at one temperature under one curve."""

    def __init__(self, answers: Sequence[Answer], curve: Curve) -> None:
        self._curve = curve
        positions = _Positions.of(answers)
        self._of_model, self._of_depth = positions.model.table()
        self._of_found, _ = positions.found.table()
        widths = [curve.target_ns(1 + k) / PLAIN_NS for k in range(MAX_DRAFT + 1)]
        self._added = np.array(widths[1:]) - widths[0]
        self.rate = min(_RATES, key=lambda rate: _whole(self._policy_runs(positions, rate)))
        self._known = self._policy_runs(positions, self.rate)

    def ns(self, answer: Answer, end: int) -> int:
        """Return the nanoseconds of the first `end` tokens of one of its answers."""
        return self._known[answer].ns(end)

    def of_others(self, answers: Sequence[Answer], *, has_read: bool) -> int:
        """Return the nanoseconds of other answers, with the probabilities of its own.

        has_read: whether the drafter has already read the prompts.
        """
        return _whole(self._policy_runs(_Positions.of(answers), self.rate, has_read=has_read))

    def _policy_runs(
        self, positions: _Positions, rate: float, *, has_read: bool = False
    ) -> dict[Answer, PolicyRun]:
        rows = np.stack(self._columns(positions, rate), axis=1).tolist()
        runs, first = {}, 0

        def rule(at: int) -> Step:
            # The first token needs no step: the prompt's pass gives it.
            return Step._make(rows[first + at - 1])

        for answer in positions.answers:
            n_read = len(answer.prompt) if has_read else 0
            runs[answer] = PolicyRun(answer, self._curve, rule, n_read)
            first += len(answer.tokens) - 1
        return runs

    def _columns(self, positions: _Positions, rate: float) -> Sequence[Ints]:
        """Return the step at each position with that λ, as the fields of a Step."""
        model, found = positions.model, positions.found
        chances = np.cumsum(found.chances(self._of_found), axis=1)
        found_worth, n_found = _best(chances - rate * self._added, found)
        worth, n_sent, n_drafted = self._draft(model, rate, found_worth)
        is_found = (found_worth > 0) & (found_worth > worth)
        n_sent = np.where(is_found, n_found, n_sent)
        n_accepted = np.minimum(n_sent, np.where(is_found, found.n_right, model.n_right))
        return n_drafted, model.n_right, n_sent, n_accepted, is_found.astype(np.int64)

    def _draft(self, model: Guesses, rate: float, found_worth: Floats) -> tuple[Floats, Ints, Ints]:
        """Return worth, tokens to send and tokens drafted of the model's draft at every position.

        The drafter continues as long as some longer draft promises more than the current one.
        """
        chances = model.chances(self._of_model)
        tokens, n = np.cumsum(chances, axis=1), len(model.lengths)
        worths = tokens - rate * self._added
        n_drafted, n_best = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        best, goes_on = np.zeros(n), np.ones(n, dtype=bool)
        for depth in range(MAX_DRAFT):
            ahead = np.cumsum(np.cumprod(self._of_depth[depth:]))
            steps = self._curve.draft_step * np.arange(1, MAX_DRAFT - depth + 1)
            price = rate * (self._added[depth:] + steps)
            so_far = tokens[:, depth - 1] if depth else np.zeros(n)
            chance = chances[:, depth - 1] if depth else np.ones(n)
            promised = so_far + np.max(chance[:, None] * ahead - price, axis=1)
            goes_on &= (depth < model.lengths) & (promised > np.maximum(best, found_worth))
            n_drafted += goes_on
            better = goes_on & (worths[:, depth] > best)
            best = np.where(better, worths[:, depth], best)
            n_best = np.where(better, depth + 1, n_best)
        return best, n_best, n_drafted


@dataclass(frozen=True, slots=True)
class _Positions:
    """The possible guesses at every position of some answers."""

    answers: Sequence[Answer]
    model: Guesses
    found: Guesses

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> _Positions:
        return cls(answers, drafted(answers), looked_up(answers))


def _whole(runs: Mapping[Answer, PolicyRun]) -> int:
    """Return the nanoseconds of all answers, each to its end."""
    return sum(run.ns(len(answer.tokens)) for answer, run in runs.items())


def _best(worths: Floats, guesses: Guesses) -> tuple[Floats, Ints]:
    """Return the best length of the existing drafts and its worth; 0 if none is worth anything."""
    there = np.arange(MAX_DRAFT) < guesses.lengths[:, None]
    worths = np.where(there, worths, -np.inf)
    best, n = worths.max(axis=1), worths.argmax(axis=1) + 1
    return np.maximum(best, 0.0), np.where(best > 0, n, 0)
