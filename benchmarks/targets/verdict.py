"""The ten targets of the design, judged: what each demands, what was measured, PASS or FAIL."""

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
    """One number that a target demands something of.

    of: what it is of.  low, high: where another run may well find it; None where it is exact.
    digits: it is shown, and held against its goal, with so many after the point.
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
        """The goal lies within the noise: another run may end otherwise."""
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
    """figures: all must be met; none of them means that it was not measured.

    remarks: what else belongs to it.  reasons: what a missed figure comes of, where that is known.
    """

    number: int
    what: str
    goal: str
    figures: tuple[Figure, ...] = ()
    remarks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        if not self.figures:
            return Outcome.UNKNOWN
        return Outcome.PASS if all(f.is_met for f in self.figures) else Outcome.FAIL

    @property
    def measured(self) -> str:
        return "; ".join(figure.words for figure in self.figures) or "–"

    def notes(self) -> Iterator[str]:
        """Reasons where it failed, then doubts, then remarks."""
        for figure in self.figures:
            if not figure.is_met:
                yield f"missed: {figure.words}, demanded {figure.demand}"
        if self.outcome is Outcome.FAIL:
            yield from dict.fromkeys(self.reasons)
        for figure in self.figures:
            if figure.is_doubtful:
                yield f"{figure.of}: the goal of {figure.goal:g} lies within the noise of this run"
        yield from self.remarks
