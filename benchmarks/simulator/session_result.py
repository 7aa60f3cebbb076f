"""What a session came to, and how requests are played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.simulator.curves import Curve
from benchmarks.simulator.engine import SimulatedAnswer, SimulatedEngine, SimulatedRequest
from benchmarks.simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """Nanoseconds of one session: as it was, plainly, and of what it is held against.

    excess: the most that an answer took beyond its allowed share, see Answered.excess.
    """

    taken: float
    plain: float
    best: float
    excess: float


#: Trace, temperature, curve, number of sessions → one entry of each session.
Situation = Callable[[Trace, float, Curve, int], Sequence[SessionTimes]]


def answer_in_sequence(
    engine: SimulatedEngine, asked: Sequence[SimulatedRequest], best: float
) -> SessionTimes:
    """Answer one request after another; from the first token to the last of each."""
    return sum_answers([engine.answer(one) for one in asked], best)


def sum_answers(answered: Sequence[SimulatedAnswer], best: float) -> SessionTimes:
    """Add up what the answers took, by their own shares of the passes and without noise."""
    return SessionTimes(
        taken=sum(one.share.taken_ns for one in answered),
        plain=sum(one.share.plain_ns for one in answered),
        best=best,
        excess=max(one.excess for one in answered),
    )
