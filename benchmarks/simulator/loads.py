"""Situations with several requests at a time, held against fixed lengths under the same load."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.simulator.curves import Curve
from benchmarks.simulator.engine import Answered, Asked, SimulatedEngine
from benchmarks.simulator.hostile import useless
from benchmarks.simulator.played import Session
from benchmarks.simulator.sessions import Cut, session
from benchmarks.simulator.together import Together
from benchmarks.simulator.trace import Trace
from benchmarks.simulator.yardsticks import LENGTHS
from specd.core import DrafterKind

N_SLOTS = 4
#: A turning load: so many answers alone, so many as the slots take them, so many alone.
_ALONE, _TOGETHER = 8, 16


def four_slots(trace: Trace, temperature: float, curve: Curve, n_sessions: int) -> list[Session]:
    """Hold against the best single length of all sessions."""
    answers = trace.at(temperature)
    several = [session(answers, number) for number in range(n_sessions)]
    fixed = {
        length: [Together(curve, length).ns(cuts, N_SLOTS) for cuts in several]
        for length in LENGTHS
    }
    best = min(fixed.values(), key=sum)
    return [
        _together(SimulatedEngine(curve, n_slots=N_SLOTS), [_asked(cuts)], *yardsticks)
        for cuts, *yardsticks in zip(several, fixed[0], best, strict=True)
    ]


def useless_on_four_slots(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[Session]:
    """Hold against plain decoding; see hostile.useless."""
    answers = [useless(answer) for answer in trace.at(temperature)]
    several = []
    for number in range(n_sessions):
        cuts = session(answers, number)
        asked = [Asked(cut.answer, cut.end, drafters=(DrafterKind.MODEL,)) for cut in cuts]
        plain = Together(curve, 0).ns(cuts, N_SLOTS)
        engine = SimulatedEngine(curve, n_slots=N_SLOTS)
        several.append(_together(engine, [asked], plain, plain))
    return several


def turning_load(trace: Trace, temperature: float, curve: Curve, n_sessions: int) -> list[Session]:
    """Hold against the best single length of each part: alone, four at a time, alone again."""
    answers = trace.at(temperature)
    several = [session(answers, number) for number in range(n_sessions)]
    fixed = {length: [_parts_ns(cuts, curve, length) for cuts in several] for length in LENGTHS}
    by_part = [
        min(LENGTHS, key=lambda length: sum(parts[part] for parts in fixed[length]))
        for part in range(3)
    ]
    return [
        _together(
            SimulatedEngine(curve, n_slots=N_SLOTS),
            [
                *([one] for one in _asked(cuts[:_ALONE])),
                _asked(cuts[_ALONE : _ALONE + _TOGETHER]),
                *([one] for one in _asked(cuts[_ALONE + _TOGETHER :])),
            ],
            sum(fixed[0][number]),
            sum(fixed[length][number][part] for part, length in enumerate(by_part)),
        )
        for number, cuts in enumerate(several)
    ]


def _parts_ns(cuts: Sequence[Cut], curve: Curve, length: int) -> tuple[int, int, int]:
    """Nanoseconds of the three parts of a turning load at a fixed length."""
    rule, turn = Together(curve, length), _ALONE + _TOGETHER
    before, after = rule.ns(cuts[:_ALONE], 1), rule.ns(cuts[turn:], 1)
    return before, rule.ns(cuts[_ALONE:turn], N_SLOTS), after


def _asked(cuts: Sequence[Cut]) -> list[Asked]:
    return [Asked(cut.answer, cut.end) for cut in cuts]


def _together(
    engine: SimulatedEngine, several: Sequence[Sequence[Asked]], plain: float, best: float
) -> Session:
    """Play several requests at a time, one lot after another; prompts included."""
    began = engine.now_ns
    answered: list[Answered] = []
    for asked in several:
        answered += engine.answer_all(asked)
    return Session(engine.now_ns - began, plain, best, max(one.excess for one in answered))
