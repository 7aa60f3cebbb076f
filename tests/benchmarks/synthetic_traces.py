"""Build synthetic traces: random answers with random guesses."""

from __future__ import annotations

import random

from benchmarks.simulator.trace import Answer, Trace
from specd.engine.speculative.controller import MAX_DRAFT


def answer(share: float, number: int, n_tokens: int = 208, temperature: float = 0.8) -> Answer:
    """Return an answer with that share of right guesses; confident ones are right more often."""
    chance = random.Random(f"{share} {number}")
    right = [chance.random() < share for _ in range(n_tokens)]
    margins = [round(chance.expovariate(0.4 if one else 1.2), 3) for one in right]
    behind = [
        [round(chance.expovariate(1.0), 3) for _ in range(chance.choice((0, 3, MAX_DRAFT - 1)))]
        for _ in right
    ]
    return Answer(
        kind="prose" if share < 0.5 else "code",
        temperature=temperature,
        seed=number,
        prompt=[chance.randrange(50) for _ in range(20)],
        tokens=[chance.randrange(50) for _ in range(n_tokens)],
        right=right,
        margins=margins,
        second_right=[not one and chance.random() < 0.4 for one in right],
        after_error=[[] if one else several for one, several in zip(right, behind, strict=True)],
    )


def trace(share: float = 0.7, n_answers: int = 12) -> Trace:
    """Return a trace; half of its answers have better guesses than the other half."""
    shares = [share * factor for factor in (1.2, 0.6)]
    answers = [answer(shares[n % 2], n) for n in range(n_answers)]
    return Trace("invented", {"from": "nothing"}, answers)
