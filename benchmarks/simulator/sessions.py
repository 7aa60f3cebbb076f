"""Draw sessions, answers in random order and of random length, and play them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.simulator.curves import Curve
from benchmarks.simulator.engine import SimulatedAnswer, SimulatedEngine, SimulatedRequest
from benchmarks.simulator.trace import Answer, Trace

#: Answers of a session, and tokens of the shortest and the longest answer.
N_ANSWERS = 32
SHORTEST, LONGEST = 24, 192


@dataclass(frozen=True, slots=True)
class Cut:
    """The first `end` tokens of an answer."""

    answer: Answer
    end: int


def session(answers: Sequence[Answer], number: int, n_answers: int = N_ANSWERS) -> list[Cut]:
    """Return the session of that number: the same for every drafter, curve and policy."""
    chance = random.Random(number)  # noqa: S311 - repeatable, no secret
    chosen = chance.sample(range(len(answers)), min(n_answers, len(answers)))
    return [Cut(answers[at], chance.randint(SHORTEST, LONGEST)) for at in chosen]


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """Nanoseconds of one session: simulated, plain, and of the reference.

    excess: the most that an answer took beyond its allowed share, see SimulatedAnswer.excess.
    """

    taken: float
    plain: float
    best: float
    excess: float


#: Trace, temperature, curve, number of sessions → the times of each session.
Situation = Callable[[Trace, float, Curve, int], Sequence[SessionTimes]]


def answer_in_sequence(
    engine: SimulatedEngine, asked: Sequence[SimulatedRequest], best: float
) -> SessionTimes:
    """Answer one request after another; each is timed from its first token to its last."""
    return sum_answers([engine.answer(one) for one in asked], best)


def sum_answers(answered: Sequence[SimulatedAnswer], best: float) -> SessionTimes:
    """Add up the times of the answers by their shares of the passes, without noise."""
    return SessionTimes(
        taken=sum(one.share.taken_ns for one in answered),
        plain=sum(one.share.plain_ns for one in answered),
        best=best,
        excess=max(one.excess for one in answered),
    )
