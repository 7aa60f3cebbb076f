"""Compute the time of several concurrent answers at one fixed draft length.

Such a rule needs no engine, see fixed_policy.py; this module adds how slots share passes.  A test
checks that the sums equal the engine's to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.simulator.curves import Curve
from benchmarks.simulator.fixed_policy import Step, fixed_length_step
from benchmarks.simulator.sessions import Cut

#: Most rows of a pass, of the target and of the drafter.
N_BATCH = 512


@dataclass(slots=True)
class _Running:
    """A request in a slot.

    n_unread: tokens of its prompt.  at: tokens generated.  n_drafter: tokens that the drafter has
    read.
    """

    cut: Cut
    n_unread: int
    at: int = 0
    n_drafter: int = 0
    step: Step = Step()  # noqa: RUF009 - it cannot be changed

    def advance(self) -> None:
        """Add the tokens of one step."""
        n_history = len(self.cut.answer.prompt) + self.at
        if self.step.n_drafted:
            self.n_drafter = n_history + min(self.step.n_drafted - 1, self.step.n_accepted)
        self.at += self.step.n_accepted + 1


class SharedPassTimer:
    """Times requests that arrive together, as many at a time as there are slots."""

    def __init__(self, curve: Curve, length: int) -> None:
        """length: of every draft; 0 is plain decoding."""
        self._curve = curve
        self._length = length
        self._target_ns = cache(curve.target_ns)

    def ns(self, cuts: Sequence[Cut], n_slots: int) -> int:
        """Return the nanoseconds from the first pass to the last, prompts included."""
        waiting = [_Running(cut, len(cut.answer.prompt)) for cut in reversed(cuts)]
        running: list[_Running] = []
        ns = 0
        while waiting or running:
            while waiting and len(running) < n_slots:
                running.append(waiting.pop())
            ns += self._pass(running)
            running = [one for one in running if one.at < one.cut.end]
        return ns

    def _pass(self, running: Sequence[_Running]) -> int:
        decoding = [one for one in running if not one.n_unread]
        for one in decoding:
            one.step = fixed_length_step(one.cut.answer, self._length, one.at).cut_to(
                one.cut.end - one.at
            )
        ns = self._drafting_ns([one for one in decoding if one.step.n_drafted])
        n_rows = sum(1 + one.step.n_sent for one in decoding)
        n_logits = n_rows + _read_on([one for one in running if one.n_unread], N_BATCH - n_rows)
        for one in decoding:
            one.advance()
        return ns + self._target_ns(max(n_logits, 1))

    def _drafting_ns(self, drafting: Sequence[_Running]) -> int:
        """Return the nanoseconds of drafting: as many passes as the longest draft has tokens."""
        if not drafting:
            return 0
        n_read = sum(len(o.cut.answer.prompt) + o.at - 1 - o.n_drafter for o in drafting)
        n_first = -(-(n_read + len(drafting)) // N_BATCH)
        n_passes = n_first - 1 + max(one.step.n_drafted for one in drafting)
        return self._curve.draft_ns(n_passes, n_read)


def _read_on(reading: Sequence[_Running], room: int) -> int:
    """Read prompt tokens into the free rows; return how many prompts were completed.

    Each prompt gets an equal share, the shortest first, and at its end its first token.
    """
    n_ended = 0
    for at, one in enumerate(sorted(reading, key=lambda one: one.n_unread)):
        n = min(one.n_unread, room // (len(reading) - at))
        room -= n
        one.n_unread -= n
        if not one.n_unread:
            one.at = 1
            n_ended += 1
    return n_ended
