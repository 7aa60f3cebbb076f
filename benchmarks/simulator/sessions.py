"""Sessions: answers in random order and of random length, on an engine that has just started."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulator.trace import Answer

#: Answers of a session, and tokens of the shortest and the longest of them.
N_ANSWERS = 32
SHORTEST, LONGEST = 24, 192


@dataclass(frozen=True, slots=True)
class Cut:
    """The first `end` tokens of an answer."""

    answer: Answer
    end: int


def session(answers: Sequence[Answer], number: int, n_answers: int = N_ANSWERS) -> list[Cut]:
    """The session of that number: the same for every drafter, curve and policy."""
    chance = random.Random(number)  # noqa: S311 - repeatable, no secret
    chosen = chance.sample(range(len(answers)), min(n_answers, len(answers)))
    return [Cut(answers[at], chance.randint(SHORTEST, LONGEST)) for at in chosen]
