"""Compute by arithmetic alone what three ideas would gain over the oracle.

Each idea uses the oracle's rule and knowledge with a λ of its own.  λ is the speed that the rule
itself reaches, found by iteration (Dinkelbach), or slightly more.

Trees: besides its best guess, the drafter's second best (the sibling) is verified as a leaf.  It
costs a row and no draft step, and a pass has no more rows than without it.  An accepted sibling
stays where it was computed (moved), or is computed again as a row of the next pass (read again),
which leaves the cache as plain decoding has it.
Overlap: the drafter continues its own draft while the target verifies.  If all of it was accepted,
the next draft is ready.  This is an upper bound, because a pass may be too short for it.
Half step: an equally good drafter that takes half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.simulator.curves import CURVES, PLAIN_NS, Curve
from benchmarks.simulator.positions import N_BINS, Floats, Guesses, Ints, drafted, looked_up
from benchmarks.simulator.trace import Answer, Trace
from specd.engine.speculative.controller import MAX_DRAFT

Flags = npt.NDArray[np.bool_]

#: Iterations until λ converges, and the multiples of it that are tried then.
_N_RATES, _MULTIPLES = 4, (1.15, 1.3)
#: Weight of the prior for a sibling's probability in one bin at one depth.
_OF_BIN, _OF_ALL = 8.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """The figures of a cell.  oracle: its speed ÷ plain decoding's.  Others: ÷ the oracle's."""

    curve: str
    drafter: str
    temperature: float
    oracle: float
    moved: float
    read_again: float
    overlap: float
    half_step: float


def judge(trace: Trace) -> Iterator[Gains]:
    """Yield the gains of each idea with one drafter, for every temperature and curve."""
    for temperature in trace.temperatures:
        known = RecordedGuesses.of(trace.at(temperature))
        for curve in CURVES:
            lines = line_speed(known, curve)
            moved, again = (
                tree_speed(known, curve, reads_again=reads_again) for reads_again in (False, True)
            )
            faster = replace(curve, draft_step=curve.draft_step / 2, catch_up=curve.catch_up / 2)
            yield Gains(
                curve=curve.name,
                drafter=trace.name,
                temperature=temperature,
                oracle=lines,
                # If neither pays, a line is a tree, and waiting is no worse than today.
                moved=max(moved / lines, 1.0),
                read_again=max(again / lines, 1.0),
                overlap=max(overlap_speed(known, curve) / lines, 1.0),
                half_step=line_speed(known, faster) / lines,
            )


def table(gains: Iterable[Gains]) -> Iterator[str]:
    """Return the lines of a Markdown table with the least and the largest gain of all drafters."""
    yield "| curve | T | oracle | tree, moved | tree, read again | overlap | half step |"
    yield "|" + "---|" * 7
    places: dict[tuple[str, float], list[Gains]] = {}
    for one in gains:
        places.setdefault((one.curve, one.temperature), []).append(one)
    for curve in CURVES:
        for name, temperature in sorted(places):
            if name == curve.name:
                cells = [name, f"{temperature:g}", *_ranges(places[name, temperature])]
                yield f"| {' | '.join(cells)} |"


def _ranges(several: Sequence[Gains]) -> Iterator[str]:
    yield _range([one.oracle for one in several], 2)
    for figure in ("moved", "read_again", "overlap", "half_step"):
        yield _range([getattr(one, figure) for one in several], 3)


def _range(figures: Sequence[float], n_digits: int) -> str:
    ends = [f"{end:.{n_digits}f}" for end in (min(figures), max(figures))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


@dataclass(frozen=True, slots=True)
class RecordedGuesses:
    """The guesses at every position of some answers, and their true probabilities.

    main, siblings: [n, depth], the probability that a guess and all before it are right, and that
    all before it are and its sibling is.  second_right: whether the sibling of the first wrong
    guess is right.  by_depth, sibling_by_depth: the probability of a guess that is reached, and of
    a sibling whose guess is wrong.
    """

    answers: Sequence[Answer]
    model: Guesses
    found: Guesses
    main: Floats
    siblings: Floats
    found_main: Floats
    second_right: Flags
    by_depth: Floats
    sibling_by_depth: Floats

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> RecordedGuesses:
        model, found = drafted(answers), looked_up(answers)
        by_bin, by_depth = model.table()
        main = model.chances(by_bin)
        second = _second_right(answers, model)
        sibling_by_bin, sibling_by_depth = _sibling_table(model, second)
        depths = np.arange(MAX_DRAFT)
        before = np.concatenate((np.ones((len(main), 1)), main[:, :-1]), axis=1)
        siblings = (before - main) * sibling_by_bin[model.bins, depths]
        siblings[depths >= model.lengths[:, None]] = 0.0
        found_main = found.chances(found.table()[0])
        return cls(
            answers,
            model,
            found,
            main,
            siblings,
            found_main,
            second,
            by_depth,
            sibling_by_depth,
        )


def _second_right(answers: Sequence[Answer], model: Guesses) -> Flags:
    """Return for each position whether the sibling of the draft's first wrong guess is right."""
    flags = [second for a in answers for second in (*a.second_right[1:], False)]
    begins = [at for a in answers for at in range(1, len(a.tokens))]
    # Each answer has one more flag than positions: nothing follows its end.
    number = np.repeat(np.arange(len(answers)), [len(a.tokens) - 1 for a in answers])
    places = np.arange(len(begins)) + number + model.n_right
    is_right: Flags = np.array(flags)[places] & (model.n_right < model.lengths)
    return is_right


def _sibling_table(model: Guesses, second_right: Flags) -> tuple[Floats, Floats]:
    """Return a sibling's probability by bin and depth [bin, depth], and by depth [depth]."""
    wrong = np.flatnonzero(model.n_right < model.lengths)
    depths = model.n_right[wrong]
    places = model.bins[wrong, depths], depths
    n, n_right = np.zeros((N_BINS, MAX_DRAFT)), np.zeros((N_BINS, MAX_DRAFT))
    np.add.at(n, places, 1.0)
    np.add.at(n_right, places, second_right[wrong].astype(float))
    of_all = n_right.sum() / max(n.sum(), 1.0)
    of_bin = (n_right.sum(1) + _OF_ALL * of_all) / (n.sum(1) + _OF_ALL)
    of_depth: Floats = (n_right.sum(0) + _OF_BIN * of_all) / (n.sum(0) + _OF_BIN)
    return (n_right + _OF_BIN * of_bin[:, None]) / (n + _OF_BIN), of_depth


# ---------------------------------------------------------------------- what a rule comes to


@dataclass(frozen=True, slots=True)
class _Plan:
    """The step at each position [n].

    n_rows: guesses that are verified.  n_accepted: accepted ones of the line.  sibling: whether a
    sibling is accepted.  worth: in tokens; a plain step has none.
    """

    n_drafted: Ints
    n_rows: Ints
    n_accepted: Ints
    sibling: Flags
    worth: Floats


def line_speed(known: RecordedGuesses, curve: Curve) -> float:
    """Return plain decoding's time ÷ the oracle's."""
    return _converged_speed(lambda rate: _ns(known, curve, _plan(known, curve, rate)), known)


def tree_speed(known: RecordedGuesses, curve: Curve, *, reads_again: bool) -> float:
    """Return plain decoding's time ÷ that of the oracle with siblings."""
    sets = _SiblingSets(known, 1.0)

    def ns(rate: float) -> int:
        nonlocal sets
        plan = _plan(known, curve, rate, sets)
        if not reads_again:
            return _ns(known, curve, plan)
        dearer = _plan(known, curve, rate, sets, n_again=1)
        one_row = rate * (curve.target_ns(2) - curve.target_ns(1)) / PLAIN_NS
        price = float((plan.worth - dearer.worth).mean()) + one_row
        sets = _SiblingSets(known, max(1.0 - price, 0.0))
        return _ns(known, curve, plan, again=dearer)

    return _converged_speed(ns, known)


def overlap_speed(known: RecordedGuesses, curve: Curve) -> float:
    """Return plain decoding's time ÷ that of the oracle that continues accepted drafts."""
    free, worth = replace(curve, draft_step=0.0, catch_up=0.0), 0.0

    def ns(rate: float) -> int:
        nonlocal worth
        paid = _plan(known, curve, rate, next_worth=worth)
        hidden = _plan(known, free, rate, next_worth=worth)
        # A draft that exists is worth this much more than one that must still be made.
        worth = max(float((hidden.worth - paid.worth).mean()), 0.0)
        return _ns(known, curve, paid, hidden=hidden)

    return _converged_speed(ns, known)


def _converged_speed(ns: Callable[[float], int], known: RecordedGuesses) -> float:
    """Return the best speed of a rule.  ns: λ → nanoseconds of all answers."""
    plain = PLAIN_NS * sum(len(answer.tokens) - 1 for answer in known.answers)
    rate = best = 1.0
    for _ in range(_N_RATES):
        rate = plain / ns(rate)
        best = max(best, rate)
    return max(best, *(plain / ns(best * multiple) for multiple in _MULTIPLES))


def _ns(
    known: RecordedGuesses,
    curve: Curve,
    plan: _Plan,
    *,
    again: _Plan | None = None,
    hidden: _Plan | None = None,
) -> int:
    """Return the nanoseconds of all answers, each to its end.

    again: the plan for a sibling to be read again, if there is one.
    hidden: the plan where the draft is already there, if there is one.
    """
    columns = [_rows(known, one) for one in (plan, again or hidden or plan)]
    passes = [curve.target_ns(1 + n) for n in range(2 * MAX_DRAFT + 2)]
    total = first = 0
    for answer in known.answers:
        n_prompt, n = len(answer.prompt), len(answer.tokens)
        at, n_read, is_other = 1, 0, False
        while at < n:
            n_drafted, n_right, n_rows, n_accepted, sibling = columns[is_other][first + at - 1]
            if n_drafted:
                n_history = n_prompt + at
                if hidden is None or not is_other:
                    total += curve.draft_ns(n_drafted, n_history - 1 - n_read)
                n_read = min(n_history + n_drafted - 1, n_history + n_accepted)
            total += passes[n_rows + (again is not None and is_other)]
            at += n_accepted + sibling + 1
            is_other = sibling
            if hidden is not None:
                # The drafter's own line is the recorded text.
                is_other = n_right >= n_accepted and at <= n and answer.right[at - 1]
        first += n - 1
    return total


def _rows(known: RecordedGuesses, plan: _Plan) -> list[tuple[int, int, int, int, bool]]:
    """Return by position: drafted by the model, right ones of all, rows, accepted, sibling."""
    n_right = known.model.n_right
    columns = (plan.n_drafted, n_right, plan.n_rows, plan.n_accepted, plan.sibling)
    return list(zip(*(column.tolist() for column in columns), strict=True))


# ---------------------------------------------------------------------- the rule


class _SiblingSets:
    """The most probable guesses and siblings within each depth.

    A sibling is never more probable than the guess before it, so the set is always a tree.
    """

    def __init__(self, known: RecordedGuesses, share: float) -> None:
        """Build the sets.  share: worth of an accepted sibling, as a share of a token."""
        self._known, self._siblings = known, known.siblings * share
        self._totals = [self._total(depth) for depth in range(MAX_DRAFT + 1)]

    def _total(self, depth: int) -> Floats:
        several = (self._known.main[:, :depth], self._siblings[:, :depth])
        return np.cumsum(-np.sort(-np.concatenate(several, axis=1), axis=1), axis=1)

    def best(self, depth: int, price: Floats) -> tuple[Floats, Ints, Floats, Ints]:
        """Return worth and size of the best set, and tokens and number of its siblings.

        price: in tokens, of 0 rows, of 1 row, and so on.
        """
        n = len(self._known.main)
        if not depth:
            return np.zeros(n), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64)
        totals = np.concatenate((np.zeros((n, 1)), self._totals[depth]), axis=1)
        worths = (totals - price[: 2 * depth + 1])[:, : MAX_DRAFT + 1]
        rows, lines = worths.argmax(axis=1), np.arange(n)
        tokens, before = totals[lines, rows], totals[lines, np.maximum(rows - 1, 0)]
        least = tokens - before
        among = (self._known.main[:, :depth] >= least[:, None] - 1e-12) & (rows > 0)[:, None]
        n_main = np.minimum(among.sum(axis=1), rows)
        main = (self._known.main[:, :depth] * (np.arange(depth) < n_main[:, None])).sum(axis=1)
        return worths[lines, rows], rows, tokens - main, rows - n_main

    def kept(self, n_drafted: Ints, n_rows: Ints) -> tuple[Ints, Flags]:
        """Return the accepted guesses of the line, and whether a sibling is accepted."""
        model = self._known.model
        there = np.arange(MAX_DRAFT) < n_drafted[:, None]
        several = [np.where(there, c, 0.0) for c in (self._known.main, self._siblings)]
        order = np.argsort(-np.concatenate(several, axis=1), axis=1, kind="stable")
        sent = np.zeros(order.shape, dtype=bool)
        np.put_along_axis(sent, order, np.arange(order.shape[1]) < n_rows[:, None], axis=1)
        n_accepted = np.minimum(sent[:, :MAX_DRAFT].sum(axis=1), model.n_right)
        error = np.minimum(model.n_right, MAX_DRAFT - 1)
        sibling = sent[np.arange(len(sent)), MAX_DRAFT + error] & self._known.second_right
        return n_accepted, sibling


def _plan(
    known: RecordedGuesses,
    curve: Curve,
    rate: float,
    sets: _SiblingSets | None = None,
    *,
    next_worth: float = 0.0,
    n_again: int = 0,
) -> _Plan:
    """Return the oracle's plan with that λ; without sibling sets, a line.

    next_worth: tokens that a line is worth if it continues after the accepted tokens.  n_again:
    rows that the pass has in any case.
    """
    price = _prices(curve, rate, n_again)
    found_tokens = np.cumsum(known.found_main, axis=1) - price[1 : MAX_DRAFT + 1]
    there = np.arange(MAX_DRAFT) < known.found.lengths[:, None]
    found_worths = np.where(there, found_tokens, -np.inf)
    found_worth, n_found = found_worths.max(axis=1), found_worths.argmax(axis=1) + 1
    worth, n_rows, n_drafted = _draft(
        known, price, rate * curve.draft_step, sets, next_worth, found_worth
    )
    is_found = (found_worth > 0) & (found_worth > worth)
    if sets is None:
        n_accepted = np.minimum(n_rows, known.model.n_right)
        sibling = np.zeros(len(n_rows), dtype=bool)
    else:
        n_accepted, sibling = sets.kept(n_drafted, n_rows)
    return _Plan(
        n_drafted,
        np.where(is_found, n_found, n_rows),
        np.where(is_found, np.minimum(n_found, known.found.n_right), n_accepted),
        sibling & ~is_found,
        np.maximum(worth, found_worth) - rate * curve.draft_step * n_drafted,
    )


def _prices(curve: Curve, rate: float, n_again: int) -> Floats:
    """Return the tokens that verifying costs, by the number of rows from 0 on."""
    widths = [curve.target_ns(1 + n_again + n) / PLAIN_NS for n in range(4 * MAX_DRAFT + 1)]
    return rate * (np.array(widths) - widths[0])


def _draft(
    known: RecordedGuesses,
    price: Floats,
    step_price: float,
    sets: _SiblingSets | None,
    next_worth: float,
    found_worth: Floats,
) -> tuple[Floats, Ints, Ints]:
    """Return worth, rows and tokens drafted of the model's draft at every position.

    The drafter continues as long as some longer draft promises more than the current one.
    """
    n = len(known.main)
    zero = np.zeros(n, dtype=np.int64)
    goes_on, n_drafted = np.ones(n, dtype=bool), zero.copy()
    tokens = np.concatenate((np.zeros((n, 1)), np.cumsum(known.main, axis=1)), axis=1)
    chances = np.concatenate((np.ones((n, 1)), known.main, np.zeros((n, 1))), axis=1)
    worths = tokens + next_worth * (chances[:, 1:]) - price[: MAX_DRAFT + 1]
    worth, n_rows = worths[:, 0].copy(), zero.copy()
    beside, n_beside = np.zeros(n), zero
    for depth in range(MAX_DRAFT):
        gains, n_more, n_steps = _ahead(known, depth, with_siblings=sets is not None)
        gains = chances[:, depth, None] * gains - step_price * n_steps
        ahead = np.max(gains - price[depth + n_more], axis=1)
        if sets is not None:
            with_those = gains - price[np.minimum((depth + n_beside)[:, None] + n_more, MAX_DRAFT)]
            ahead = np.maximum(ahead, beside + np.max(with_those, axis=1))
        promised = tokens[:, depth] + ahead
        goes_on &= (depth < known.model.lengths) & (promised > np.maximum(worth, found_worth))
        if not goes_on.any():
            break
        n_drafted += goes_on
        if sets is None:
            new, n_new = worths[:, depth + 1], zero + depth + 1
        else:
            new, n_new, beside, n_beside = sets.best(depth + 1, price)
        better = goes_on & (new > worth)
        worth, n_rows = np.where(better, new, worth), np.where(better, n_new, n_rows)
    return worth, n_rows, n_drafted


def _ahead(known: RecordedGuesses, depth: int, *, with_siblings: bool) -> tuple[Floats, Ints, Ints]:
    """Return the tokens that more depth promises, its rows and its steps: lines, then trees."""
    chances = np.cumprod(known.by_depth[depth:])
    gains, n_steps = np.cumsum(chances), np.arange(1, MAX_DRAFT - depth + 1)
    if not with_siblings:
        return gains, n_steps, n_steps
    before = np.concatenate(([1.0], chances[:-1]))
    siblings = np.cumsum((before - chances) * known.sibling_by_depth[depth:])
    n_rows = np.concatenate((n_steps, 2 * n_steps))
    return np.concatenate((gains, gains + siblings)), n_rows, np.concatenate((n_steps, n_steps))
