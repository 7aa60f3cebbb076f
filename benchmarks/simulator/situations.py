"""Simulate other drafters, texts, loads, costs and histories than those of the cells."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.simulator import adversarial, concurrent_load
from benchmarks.simulator.cells import run_cell
from benchmarks.simulator.curves import Curve
from benchmarks.simulator.engine import SimulatedEngine, SimulatedRequest
from benchmarks.simulator.oracle import Oracle
from benchmarks.simulator.sessions import SessionTimes, Situation, answer_in_sequence, session
from benchmarks.simulator.trace import Answer, Trace
from specd.core import BandHistory, DrafterKind, PairHistory
from specd.engine.speculative.acceptance import EDGES
from specd.engine.speculative.controller import MAX_DRAFT
from specd.engine.speculative.drafter_stats import DOES_NOT_PAY

#: Tokens of each of the three parts of a changing text.
_PART = 64
#: Standard deviation of the logarithm of each noisy cost.
_NOISE = 0.1
#: This situation has no bound for single answers: noise may mislead an estimate.
NOISY = "noisy costs"


@dataclass(frozen=True, slots=True, kw_only=True)
class SituationFigures:
    """The figures of a situation.  Ratios are of speeds, ÷ the situation's reference.

    ratio, worst: of the median and of the worst session.  gain: plain time ÷ time, median session.
    worst_answer: the most that an answer took beyond its share of plain time, in plain passes; None
    in figures from before it was measured.
    """

    situation: str
    drafter: str
    temperature: float
    curve: str
    n_sessions: int
    gain: float
    ratio: float
    worst: float
    worst_answer: float | None = None


def run_situation(
    name: str, trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> SituationFigures:
    """Simulate one of SITUATIONS.  Raises KeyError for another name."""
    several = SITUATIONS[name](trace, temperature, curve, n_sessions)
    ratios = [one.best / one.taken for one in several]
    return SituationFigures(
        situation=name,
        drafter=trace.name,
        temperature=temperature,
        curve=curve.name,
        n_sessions=len(several),
        gain=statistics.median(one.plain / one.taken for one in several),
        ratio=statistics.median(ratios),
        worst=min(ratios),
        worst_answer=max(one.excess for one in several),
    )


# ---------------------------------------------------------------------- a text that turns


def _turning_text(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare with the oracle of each part, which knows the kind of the text."""
    answers = trace.at(temperature)
    worst, best = _extremes(answers)
    known = {kind: Oracle([a for a in answers if a.kind == kind], curve) for kind in (worst, best)}
    several = []
    for number in range(n_sessions):
        engine, oracle = SimulatedEngine(curve, seed=number), 0
        whole = _turning(answers, (worst, best, worst), number)
        for kind, at in ((worst, 0), (best, _PART), (worst, 2 * _PART)):
            parts = [_part(answer, at) for answer in whole]
            oracle += known[kind].of_others(parts, has_read=at > 0)
        asked = [SimulatedRequest(answer, len(answer.tokens)) for answer in whole]
        several.append(answer_in_sequence(engine, asked, oracle))
    return several


def _extremes(answers: Sequence[Answer]) -> tuple[str, str]:
    """Return the kinds of text with the fewest and the most right guesses."""
    shares: dict[str, list[bool]] = {}
    for answer in answers:
        shares.setdefault(answer.kind, []).extend(answer.right)
    by_share = sorted(shares, key=lambda kind: (statistics.fmean(shares[kind]), kind))
    return by_share[0], by_share[-1]


def _turning(answers: Sequence[Answer], kinds: Sequence[str], number: int) -> list[Answer]:
    """Return as many answers as there are of the first kind, each with parts of three others."""
    chance = random.Random(number)  # noqa: S311 - repeatable, no secret
    of_kind = {kind: [a for a in answers if a.kind == kind] for kind in kinds}
    return [
        _join_parts([chance.choice(of_kind[kind]) for kind in kinds])
        for _ in range(len(of_kind[kinds[0]]))
    ]


def _join_parts(parts: Sequence[Answer]) -> Answer:
    """Return the first tokens of each part one after another, after the first one's prompt."""
    first = parts[0]
    return replace(
        first,
        tokens=[token for part in parts for token in part.tokens[:_PART]],
        right=[right for part in parts for right in part.right[:_PART]],
        margins=[margin for part in parts for margin in part.margins[:_PART]],
        second_right=[right for part in parts for right in part.second_right[:_PART]],
        after_error=[several for part in parts for several in part.after_error[:_PART]],
    )


def _part(answer: Answer, begin: int) -> Answer:
    """Return one part of a joined answer, with all before it as prompt."""
    first = max(begin - 1, 0)
    cut = slice(first, begin + _PART)
    return replace(
        answer,
        prompt=[*answer.prompt, *answer.tokens[:first]],
        tokens=answer.tokens[cut],
        right=answer.right[cut],
        margins=answer.margins[cut],
        second_right=answer.second_right[cut],
        after_error=answer.after_error[cut],
    )


# ---------------------------------------------------------------------- noisy costs


def _noisy_costs(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[SessionTimes]:
    """Compare with the best single length: the controller sees noise, the figures do not."""
    answers = trace.at(temperature)
    sessions = [session(answers, number) for number in range(n_sessions)]
    best = adversarial.best_ns(answers, curve, sessions)
    return [
        answer_in_sequence(
            SimulatedEngine(curve, noise=_NOISE, seed=number),
            [SimulatedRequest(cut.answer, cut.end) for cut in cuts],
            best_ns,
        )
        for number, (cuts, best_ns) in enumerate(zip(sessions, best, strict=True))
    ]


# ---------------------------------------------------------------------- other histories


def _with_history(history: PairHistory) -> Situation:
    def run(trace: Trace, temperature: float, curve: Curve, n_sessions: int) -> list[SessionTimes]:
        """Compare with the best single length."""
        figures = run_cell(
            trace,
            temperature,
            curve,
            n_sessions,
            lambda number: SimulatedEngine(curve, history=history, seed=number),
        )
        return [
            SessionTimes(1.0, figures.gain, ratio, figures.worst_answer)
            for ratio in figures.by_session
        ]

    return run


def _history(*, gain: float, parked: str, acceptance: float) -> PairHistory:
    """Return a long history that is the same for both drafters and all temperatures."""
    return PairHistory(
        bands=tuple(
            BandHistory(
                drafter=kind,
                band=band,
                by_confidence=tuple((acceptance, 100.0) for _ in range(len(EDGES[kind]) + 1)),
                by_depth=((acceptance, 100.0),) * MAX_DRAFT,
                parked=parked,
                gain=gain,
                n_requests=1000,
            )
            for kind in DrafterKind
            for band in range(4)
        )
    )


PARKED = _history(gain=0.8, parked=DOES_NOT_PAY, acceptance=0.1)
BOASTFUL = _history(gain=8.0, parked="", acceptance=1.0)

SITUATIONS: dict[str, Situation] = {
    "useless drafter": adversarial.useless_drafter,
    "useless drafter, four slots": concurrent_load.useless_on_four_slots,
    "adversary": adversarial.adversary,
    "bad beginning": adversarial.bad_beginning,
    "long prompts": adversarial.long_prompts,
    NOISY: _noisy_costs,
    "text that turns": _turning_text,
    "four slots": concurrent_load.four_slots,
    "load that turns": concurrent_load.turning_load,
    "history of a parked pair": _with_history(PARKED),
    "history of a perfect pair": _with_history(BOASTFUL),
}
