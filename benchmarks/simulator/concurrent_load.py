"""Simulate several requests at a time, compared with fixed lengths under the same load."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.simulator.adversarial import with_useless_drafts
from benchmarks.simulator.baselines import LENGTHS
from benchmarks.simulator.curves import Curve
from benchmarks.simulator.engine import SimulatedAnswer, SimulatedEngine, SimulatedRequest
from benchmarks.simulator.sessions import Cut, SessionTimes, session
from benchmarks.simulator.shared_pass_timer import SharedPassTimer
from benchmarks.simulator.trace import Trace
from specd.core import DrafterKind

N_SLOTS = 4
#: Answers of each part of a changing load: alone, in all slots, alone.
_ALONE, _TOGETHER = 8, 16


def four_slots(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare with the best single length of all sessions."""
    answers = trace.at(temperature)
    several = [session(answers, number) for number in range(n_sessions)]
    fixed = {
        length: [SharedPassTimer(curve, length).ns(cuts, N_SLOTS) for cuts in several]
        for length in LENGTHS
    }
    best = min(fixed.values(), key=sum)
    return [
        _answer_together(SimulatedEngine(curve, n_slots=N_SLOTS), [_asked(cuts)], *baselines)
        for cuts, *baselines in zip(several, fixed[0], best, strict=True)
    ]


def useless_on_four_slots(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare with plain decoding; see adversarial.useless_drafter."""
    answers = [with_useless_drafts(answer) for answer in trace.at(temperature)]
    several = []
    for number in range(n_sessions):
        cuts = session(answers, number)
        asked = [
            SimulatedRequest(cut.answer, cut.end, drafters=(DrafterKind.MODEL,)) for cut in cuts
        ]
        plain = SharedPassTimer(curve, 0).ns(cuts, N_SLOTS)
        engine = SimulatedEngine(curve, n_slots=N_SLOTS)
        several.append(_answer_together(engine, [asked], plain, plain))
    return several


def turning_load(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare with the best single length of each part: alone, four at a time, alone again."""
    answers = trace.at(temperature)
    several = [session(answers, number) for number in range(n_sessions)]
    fixed = {length: [_parts_ns(cuts, curve, length) for cuts in several] for length in LENGTHS}
    by_part = [
        min(LENGTHS, key=lambda length: sum(parts[part] for parts in fixed[length]))
        for part in range(3)
    ]
    return [
        _answer_together(
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
    """Return the nanoseconds of the three parts of a changing load at a fixed length."""
    rule, turn = SharedPassTimer(curve, length), _ALONE + _TOGETHER
    before, after = rule.ns(cuts[:_ALONE], 1), rule.ns(cuts[turn:], 1)
    return before, rule.ns(cuts[_ALONE:turn], N_SLOTS), after


def _asked(cuts: Sequence[Cut]) -> list[SimulatedRequest]:
    return [SimulatedRequest(cut.answer, cut.end) for cut in cuts]


def _answer_together(
    engine: SimulatedEngine,
    several: Sequence[Sequence[SimulatedRequest]],
    plain: float,
    best: float,
) -> SessionTimes:
    """Simulate requests in groups that arrive together; the times include prompts."""
    began = engine.now_ns
    answered: list[SimulatedAnswer] = []
    for asked in several:
        answered += engine.answer_all(asked)
    return SessionTimes(engine.now_ns - began, plain, best, max(one.excess for one in answered))
