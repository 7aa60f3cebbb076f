"""Simulate drafters that mislead the controller, and answers for which drafting does not pay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.simulator.baselines import LENGTHS, baselines
from benchmarks.simulator.curves import Curve
from benchmarks.simulator.engine import SimulatedEngine, SimulatedRequest, plain_ns
from benchmarks.simulator.sessions import Cut, SessionTimes, answer_in_sequence, session
from benchmarks.simulator.trace import Answer, Trace
from specd.core import DrafterKind
from specd.engine.speculative.controller import MAX_DRAFT

_MODEL = (DrafterKind.MODEL,)
#: Drafts sent before the adversary turns wrong, and steps without a draft before it turns right.
_KEPT, _BROKEN = (0, 1, 2, 4, 8, 16), (1, 2, 4, 8)
#: Tokens that precede a prompt to make it long.
_N_BEFORE = 1600


def with_useless_drafts(answer: Answer) -> Answer:
    """Return the answer with a drafter that is as confident but always wrong."""
    n = len(answer.tokens)
    margins = [*answer.margins, *answer.margins[:MAX_DRAFT]]
    return replace(
        answer,
        right=[False] * n,
        second_right=[False] * n,
        after_error=[margins[at + 1 : at + MAX_DRAFT] for at in range(n)],
    )


def useless_drafter(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare with plain decoding.

    Prompt lookup is off, because its gain would hide the loss.
    """
    answers = [with_useless_drafts(answer) for answer in trace.at(temperature)]
    several = []
    for number in range(n_sessions):
        cuts = session(answers, number)
        asked = [SimulatedRequest(cut.answer, cut.end, drafters=_MODEL) for cut in cuts]
        engine = SimulatedEngine(curve, seed=number)
        several.append(answer_in_sequence(engine, asked, _plain_ns(cuts)))
    return several


def adversary(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare with plain decoding: a drafter that is right until the controller trusts it."""
    answers = trace.at(temperature)
    several = []
    for number in range(n_sessions):
        chance = random.Random(number)  # noqa: S311 - repeatable, no secret
        cuts = session(answers, number)
        asked = [
            SimulatedRequest(
                cut.answer,
                cut.end,
                drafters=_MODEL,
                adversary=(chance.choice(_KEPT), chance.choice(_BROKEN)),
            )
            for cut in cuts
        ]
        engine = SimulatedEngine(curve, seed=number)
        several.append(answer_in_sequence(engine, asked, _plain_ns(cuts)))
    return several


def bad_beginning(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare the answers after a first one without a right guess with the best length."""
    answers = trace.at(temperature)
    engines = [SimulatedEngine(curve, seed=number) for number in range(n_sessions)]
    sessions = [session(answers, number) for number in range(n_sessions)]
    firsts = [
        engine.answer(
            SimulatedRequest(with_useless_drafts(cuts[0].answer), cuts[0].end, drafters=_MODEL)
        )
        for engine, cuts in zip(engines, sessions, strict=True)
    ]
    rests = [cuts[1:] for cuts in sessions]
    best = best_ns(answers, curve, rests)
    several = []
    for engine, first, cuts, ns in zip(engines, firsts, rests, best, strict=True):
        rest = answer_in_sequence(
            engine, [SimulatedRequest(cut.answer, cut.end) for cut in cuts], ns
        )
        several.append(replace(rest, excess=max(rest.excess, first.excess)))
    return several


def long_prompts(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare with plain decoding: reading the prompt may cost the drafter more than it gains.

    Other answers precede each prompt, so that prompt lookup finds something too.
    """
    answers = trace.at(temperature)
    several = []
    for number in range(n_sessions):
        cuts = session(answers, number)
        before = [token for cut in cuts for token in cut.answer.tokens][:_N_BEFORE]
        asked = [
            SimulatedRequest(replace(cut.answer, prompt=[*before, *cut.answer.prompt]), cut.end)
            for cut in cuts
        ]
        engine = SimulatedEngine(curve, seed=number)
        several.append(answer_in_sequence(engine, asked, _plain_ns(cuts)))
    return several


def _plain_ns(cuts: Sequence[Cut]) -> int:
    return sum(plain_ns(cut.end) for cut in cuts)


def best_ns(
    answers: Sequence[Answer], curve: Curve, sessions: Sequence[Sequence[Cut]]
) -> Sequence[int]:
    """Return the nanoseconds of each session at the single length that is fastest over all."""
    known = baselines(tuple(answers), curve)
    by_length = [
        [sum(known.fixed_ns(cut.answer, cut.end, length) for cut in cuts) for cuts in sessions]
        for length in LENGTHS
    ]
    return min(by_length, key=sum)
