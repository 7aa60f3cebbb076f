"""Simulate one drafter at one temperature under one cost curve over many sessions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.simulator.baselines import LENGTHS, baselines
from benchmarks.simulator.curves import PLAIN_NS, Curve
from benchmarks.simulator.engine import ALLOWED_SHARE, SimulatedEngine, SimulatedRequest, plain_ns
from benchmarks.simulator.sessions import Cut, session
from benchmarks.simulator.trace import Answer, Trace

#: The number of first answers, and the ratio below which a session counts as locked out.
N_FIRST = 8
NEVER_DRAFTED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """The figures of a cell.  Gains are plain time ÷ time over all sessions; ratios are of speeds.

    gain: of the median session.  best_length: the single length that is fastest over all sessions,
    0 for plain decoding.  to_best: of the median session; worst_session: of the worst.
    to_oracle: compared with the oracle or the best length, whichever is faster.
    worst_answer: the most that an answer took beyond ALLOWED_SHARE of plain time, in plain passes.
    worst_slowdown: the largest time of an answer ÷ plain time.  first_eight: of the median session.
    by_session: each session's ratio to the best length.
    """

    drafter: str
    temperature: float
    curve: str
    n_sessions: int
    gain: float
    best_length: int
    best_gain: float
    oracle_gain: float
    clairvoyant_gain: float
    to_best: float
    worst_session: float
    n_locked_out: int
    to_oracle: float
    worst_answer: float
    worst_slowdown: float
    first_eight: float
    by_session: tuple[float, ...]


#: Starts an engine for the session of that number.
Engine = Callable[[int], SimulatedEngine]


@dataclass(frozen=True, slots=True)
class _PlayedSession:
    """A session: its answers, and the nanoseconds of each."""

    cuts: Sequence[Cut]
    ns: Sequence[int]


def run_cell(
    trace: Trace,
    temperature: float,
    curve: Curve,
    n_sessions: int,
    engine: Engine | None = None,
    best_length: int | None = None,
) -> CellFigures:
    """Simulate n_sessions with one answer at a time, each from a cold start.

    best_length: the single length to compare with, if it was found over other sessions.
    """
    answers = trace.at(temperature)
    start = engine or (lambda number: SimulatedEngine(curve, seed=number))
    played = [_play(start(number), session(answers, number)) for number in range(n_sessions)]
    return _figures(trace.name, temperature, curve, answers, played, best_length)


def _play(engine: SimulatedEngine, cuts: Sequence[Cut]) -> _PlayedSession:
    return _PlayedSession(
        cuts, [engine.answer(SimulatedRequest(cut.answer, cut.end)).ns for cut in cuts]
    )


def _figures(
    drafter: str,
    temperature: float,
    curve: Curve,
    answers: Sequence[Answer],
    played: Sequence[_PlayedSession],
    best_length: int | None,
) -> CellFigures:
    known = baselines(tuple(answers), curve)
    cuts = [cut for one in played for cut in one.cuts]
    ns = [n for one in played for n in one.ns]
    plain = [plain_ns(cut.end) for cut in cuts]

    def total(length: int, several: Sequence[Cut]) -> int:
        return sum(known.fixed_ns(cut.answer, cut.end, length) for cut in several)

    totals = {length: total(length, cuts) for length in LENGTHS}
    best = min(totals, key=lambda length: totals[length]) if best_length is None else best_length
    oracle = sum(known.oracle_ns(cut.answer, cut.end) for cut in cuts)
    clairvoyant = sum(known.clairvoyant_ns(cut.answer, cut.end) for cut in cuts)
    ratios = [total(best, one.cuts) / sum(one.ns) for one in played]
    first = [total(best, one.cuts[:N_FIRST]) / sum(one.ns[:N_FIRST]) for one in played]
    gains = [sum(plain_ns(cut.end) for cut in one.cuts) / sum(one.ns) for one in played]
    return CellFigures(
        drafter=drafter,
        temperature=temperature,
        curve=curve.name,
        n_sessions=len(played),
        gain=statistics.median(gains),
        best_length=best,
        best_gain=sum(plain) / totals[best],
        oracle_gain=sum(plain) / oracle,
        clairvoyant_gain=sum(plain) / clairvoyant,
        to_best=statistics.median(ratios),
        worst_session=min(ratios),
        n_locked_out=sum(ratio < NEVER_DRAFTED for ratio in ratios),
        to_oracle=min(oracle, totals[best]) / sum(ns),
        worst_answer=max(
            (n - ALLOWED_SHARE * p) / PLAIN_NS for n, p in zip(ns, plain, strict=True)
        ),
        worst_slowdown=max(n / p for n, p in zip(ns, plain, strict=True)),
        first_eight=statistics.median(first),
        by_session=tuple(round(ratio, 4) for ratio in ratios),
    )
