"""What a plain session leaves out: useless drafters, texts and loads that turn, other histories."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.simulator.cells import run_cell
from benchmarks.simulator.curves import Curve
from benchmarks.simulator.engine import Asked, SimulatedEngine, plain_ns
from benchmarks.simulator.oracle import Oracle
from benchmarks.simulator.sessions import Cut, session
from benchmarks.simulator.trace import Answer, Trace
from specd.core import BandHistory, DrafterKind, PairHistory, SpeculationMode
from specd.engine.speculative.acceptance import EDGES
from specd.engine.speculative.controller import MAX_DRAFT
from specd.engine.speculative.track import DOES_NOT_PAY

N_SLOTS = 4
#: Lengths that are tried where several slots make each of them a run of its own.
_LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
#: A turning text is three parts of so many tokens.
_PART = 64
#: A turning load: so many answers alone, so many as the slots take them, so many alone.
_ALONE, _TOGETHER = 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SituationFigures:
    """Ratios are of speeds, against what the situation names; of the median and the worst session.

    gain: plain time ÷ time, of the median session.
    """

    situation: str
    drafter: str
    temperature: float
    curve: str
    n_sessions: int
    gain: float
    ratio: float
    worst: float


@dataclass(frozen=True, slots=True)
class _Session:
    """Time of one session, in any unit: as it was, plainly, and of what it is held against."""

    taken: float
    plain: float
    best: float


#: Trace, temperature, curve, number of sessions → one entry of each session.
Situation = Callable[[Trace, float, Curve, int], Sequence[_Session]]


def run_situation(
    name: str, trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> SituationFigures:
    """One of SITUATIONS.  KeyError for every other name."""
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
    )


# ---------------------------------------------------------------------- a useless drafter


def useless(answer: Answer) -> Answer:
    """The same answer, with a drafter that is as sure of its guesses and always wrong."""
    n = len(answer.tokens)
    margins = [*answer.margins, *answer.margins[:MAX_DRAFT]]
    return replace(
        answer,
        right=[False] * n,
        second_right=[False] * n,
        after_error=[margins[at + 1 : at + MAX_DRAFT] for at in range(n)],
    )


def _useless(trace: Trace, temperature: float, curve: Curve, n_sessions: int) -> list[_Session]:
    """Held against plain decoding; lookup stays out, or what it gains would hide the loss."""
    answers = [useless(answer) for answer in trace.at(temperature)]
    several = []
    for number in range(n_sessions):
        engine, cuts = SimulatedEngine(curve, seed=number), session(answers, number)
        asked = [Asked(cut.answer, cut.end, drafters=(DrafterKind.MODEL,)) for cut in cuts]
        plain = sum(plain_ns(cut.end) for cut in cuts)
        several.append(_Session(sum(engine.answer(one).ns for one in asked), plain, plain))
    return several


# ---------------------------------------------------------------------- a text that turns


def _turning_text(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[_Session]:
    """Held against the oracle of each part: one that knows the kind of text that it is."""
    answers = trace.at(temperature)
    worst, best = _extremes(answers)
    known = {kind: Oracle([a for a in answers if a.kind == kind], curve) for kind in (worst, best)}
    several = []
    for number in range(n_sessions):
        engine, ns, oracle = SimulatedEngine(curve, seed=number), 0, 0
        whole = _turning(answers, (worst, best, worst), number)
        for answer in whole:
            ns += engine.answer(Asked(answer, len(answer.tokens))).ns
        for kind, at in ((worst, 0), (best, _PART), (worst, 2 * _PART)):
            parts = [_part(answer, at) for answer in whole]
            oracle += known[kind].of_others(parts, has_read=at > 0)
        plain = sum(plain_ns(len(answer.tokens)) for answer in whole)
        several.append(_Session(ns, plain, oracle))
    return several


def _extremes(answers: Sequence[Answer]) -> tuple[str, str]:
    """The kinds of text that the drafter guesses worst and best."""
    shares: dict[str, list[bool]] = {}
    for answer in answers:
        shares.setdefault(answer.kind, []).extend(answer.right)
    by_share = sorted(shares, key=lambda kind: (statistics.fmean(shares[kind]), kind))
    return by_share[0], by_share[-1]


def _turning(answers: Sequence[Answer], kinds: Sequence[str], number: int) -> list[Answer]:
    """As many answers as there are of the first kind, each with parts of three others."""
    chance = random.Random(number)  # noqa: S311 - repeatable, no secret
    of_kind = {kind: [a for a in answers if a.kind == kind] for kind in kinds}
    return [
        _joined([chance.choice(of_kind[kind]) for kind in kinds])
        for _ in range(len(of_kind[kinds[0]]))
    ]


def _joined(parts: Sequence[Answer]) -> Answer:
    """The first tokens of each part one after another, behind the first one's prompt."""
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
    """One part of a joined answer, behind all before it; the token before it is its first."""
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


# ---------------------------------------------------------------------- several at a time


def _four_slots(trace: Trace, temperature: float, curve: Curve, n_sessions: int) -> list[_Session]:
    """Held against the best single length of all sessions."""
    answers = trace.at(temperature)
    several = [session(answers, number) for number in range(n_sessions)]

    def run(cuts: Sequence[Cut], length: int | None) -> int:
        engine = SimulatedEngine(curve, n_slots=N_SLOTS)
        return _together(engine, cuts, length)

    by_length = {length: [run(cuts, length) for cuts in several] for length in _LENGTHS}
    best = min(by_length.values(), key=sum)
    drafted = [run(cuts, None) for cuts in several]
    return [_Session(*row) for row in zip(drafted, by_length[0], best, strict=True)]


def _turning_load(
    trace: Trace, temperature: float, curve: Curve, n_sessions: int
) -> list[_Session]:
    """Held against the best single length of each part: alone, four at a time, alone again."""
    answers = trace.at(temperature)
    several = [session(answers, number) for number in range(n_sessions)]
    by_length = {
        length: [_load_parts(cuts, curve, length) for cuts in several] for length in _LENGTHS
    }
    by_part = [_best_of_part(by_length, part) for part in range(3)]
    return [
        _Session(
            sum(_load_parts(cuts, curve, None)),
            sum(by_length[0][number]),
            sum(by_length[length][number][part] for part, length in enumerate(by_part)),
        )
        for number, cuts in enumerate(several)
    ]


def _best_of_part(by_length: Mapping[int, Sequence[Sequence[int]]], part: int) -> int:
    """The length that was fastest in that part over all sessions."""
    return min(by_length, key=lambda length: sum(parts[part] for parts in by_length[length]))


def _load_parts(cuts: Sequence[Cut], curve: Curve, length: int | None) -> tuple[int, int, int]:
    """Nanoseconds of the three parts of a load that turns."""
    engine, turn = SimulatedEngine(curve, n_slots=N_SLOTS), _ALONE + _TOGETHER
    before = _one_by_one(engine, cuts[:_ALONE], length)
    together = _together(engine, cuts[_ALONE:turn], length)
    return before, together, _one_by_one(engine, cuts[turn:], length)


def _one_by_one(engine: SimulatedEngine, cuts: Sequence[Cut], length: int | None) -> int:
    return sum(_together(engine, [cut], length) for cut in cuts)


def _together(engine: SimulatedEngine, cuts: Sequence[Cut], length: int | None) -> int:
    """Nanoseconds of requests that come at once.  length: None is the controller's choice."""
    mode = SpeculationMode.AUTO if length is None else SpeculationMode.FIXED
    began = engine.now_ns
    engine.answer_all([Asked(cut.answer, cut.end, length, mode) for cut in cuts])
    return engine.now_ns - began


# ---------------------------------------------------------------------- other histories


def _with_history(history: PairHistory) -> Situation:
    def run(trace: Trace, temperature: float, curve: Curve, n_sessions: int) -> list[_Session]:
        """Held against the best single length."""
        figures = run_cell(
            trace,
            temperature,
            curve,
            n_sessions,
            lambda number: SimulatedEngine(curve, history=history, seed=number),
        )
        return [_Session(1.0, figures.gain, ratio) for ratio in figures.by_session]

    return run


def _history(*, gain: float, parked: str, acceptance: float) -> PairHistory:
    """The same for both drafters and all temperatures, as if learned for long."""
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
    "useless drafter": _useless,
    "text that turns": _turning_text,
    "four slots": _four_slots,
    "load that turns": _turning_load,
    "history of a parked pair": _with_history(PARKED),
    "history of a perfect pair": _with_history(BOASTFUL),
}
