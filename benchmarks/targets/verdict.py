"""Define a target's verdict: its goal, its figures, PASS or FAIL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    PASS = "PASS"  # noqa: S105 - no password
    FAIL = "FAIL"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a target.

    of: what it measures.  low, high: the interval of other runs; None if it is exact.
    digits: decimals that are shown and compared with the goal.
    """

    of: str
    value: float
    goal: float
    low: float | None = None
    high: float | None = None
    at_most: bool = False
    unit: str = ""
    digits: int = 2

    @property
    def is_met(self) -> bool:
        value = round(self.value, self.digits)
        return value <= self.goal if self.at_most else value >= self.goal

    @property
    def is_doubtful(self) -> bool:
        """Return whether the goal lies within the noise, so that another run may end otherwise."""
        if self.low is None or self.high is None or self.low == self.high:
            return False
        return self.low <= self.goal <= self.high

    @property
    def demand(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.goal:.{self.digits}f}{self.unit}"

    @property
    def words(self) -> str:
        shown = f"{self.value:.{self.digits}f}"
        if self.low is not None and self.high is not None:
            shown += f" [{self.low:.{self.digits}f} – {self.high:.{self.digits}f}]"
        return f"{self.of}: {shown}{self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one target.

    figures: all must meet their goals; without figures the target was not measured.
    not_judged: facts without which the figures mislead; the table shows them beside the figures.
    remarks: further facts.  reasons: known causes of a missed figure.
    """

    number: int
    what: str
    goal: str
    figures: tuple[Figure, ...] = ()
    not_judged: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        if not self.figures:
            return Outcome.UNKNOWN
        return Outcome.PASS if all(f.is_met for f in self.figures) else Outcome.FAIL

    @property
    def is_undecided(self) -> bool:
        """Return whether the outcome depends on figures whose interval contains the goal."""
        deciding = [f for f in self.figures if not f.is_met] or self.figures
        doubtful = [f.is_doubtful for f in deciding]
        return all(doubtful) if self.outcome is Outcome.FAIL else any(doubtful)

    @property
    def measured(self) -> str:
        judged = "; ".join(figure.words for figure in self.figures) or "–"
        if not self.not_judged:
            return judged
        return f"{judged}. Not judged: {'; '.join(self.not_judged)}"

    def notes(self) -> Iterator[str]:
        """Yield the missed figures and reasons, then doubts, then remarks."""
        for figure in self.figures:
            if not figure.is_met:
                yield f"missed: {figure.words}, demanded {figure.demand}"
        if self.outcome is Outcome.FAIL:
            yield from dict.fromkeys(self.reasons)
        for figure in self.figures:
            if figure.is_doubtful:
                yield (
                    f"undecided: {figure.of}: the interval contains the goal of {figure.goal:g}, so"
                    " that another run may end otherwise"
                )
        yield from self.remarks
