"""A readable summary of speculation in each request, made from the calls of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specd.core import TEMPERATURE_BANDS
from specd.engine.speculative.controller import MAX_DRAFT, temperature_band
from specd.engine.speculative.trace import Call, Close, ObserveStep, Open, Standing, State

#: Characters in the line of draft lengths, and the character for each length.
_WIDTH = 60
_LENGTH_DIGITS = ".123456789abcdefg"


@dataclass(slots=True)
class _DrafterCounts:
    n_guessed: int = 0
    n_sent: int = 0
    n_accepted: int = 0


@dataclass(slots=True)
class _Request:
    """A request of the trace.

    lengths: tokens sent in each step.
    state_changes: one line for each time a drafter was parked or drafted again.
    """

    opened: Open
    parked: dict[str, str]
    state_changes: list[str]
    counts_by_drafter: dict[str, _DrafterCounts]
    lengths: list[int] = field(default_factory=list)
    n_tokens: int = 0
    step_s: float = 0.0
    plain_s: float = 0.0
    final_state: str = ""


class Timelines:
    """The open requests of a trace; a request's lines are returned when it ends."""

    def __init__(self, longest: int = MAX_DRAFT) -> None:
        """Start without requests.  longest: the controller's longest draft, in tokens."""
        self._longest = longest
        self._requests: dict[int, _Request] = {}

    def add_call(self, call: Call) -> list[str]:
        """Note a call; return the lines on the request that it ended, if it ended one."""
        match call:
            case Open():
                self._requests[call.request_id] = _begin(call)
            case ObserveStep() if call.request_id in self._requests:
                _step(self._requests[call.request_id], call)
            case State() if call.request_id in self._requests:
                self._requests[call.request_id].final_state = " ".join(filter(None, call.answer))
            case Close() if call.request_id in self._requests:
                return [*_lines(self._requests.pop(call.request_id), self._longest)]
            case _:
                pass
        return []

    def unfinished(self) -> Iterator[str]:
        """Yield the lines on the requests that are still open."""
        for request in self._requests.values():
            yield from _lines(request, self._longest)
            yield "    not ended"


def _begin(call: Open) -> _Request:
    parked = {drafter: reason for drafter, reason, _ in call.standings}
    state_changes = [
        f"step 1: {drafter} starts parked because of earlier requests: {reason}"
        for drafter, reason in parked.items()
        if reason
    ]
    return _Request(call, parked, state_changes, {drafter: _DrafterCounts() for drafter in parked})


def _step(request: _Request, call: ObserveStep) -> None:
    request.lengths.append(call.n_sent)
    request.n_tokens += call.n_accepted + 1
    request.step_s += call.estimate.step_s
    request.plain_s += call.estimate.plain_s * (call.n_accepted + 1)
    for drafter, confidences, *_ in call.guesses:
        request.counts_by_drafter.setdefault(drafter, _DrafterCounts()).n_guessed += len(
            confidences
        )
    if call.sent_by:
        counts = request.counts_by_drafter.setdefault(call.sent_by, _DrafterCounts())
        counts.n_sent += call.n_sent
        counts.n_accepted += call.n_accepted
    _note_state_changes(request, call.estimate.standings)


def _note_state_changes(request: _Request, standings: Sequence[Standing]) -> None:
    for drafter, reason, gain in standings:
        was, request.parked[drafter] = request.parked.get(drafter, ""), reason
        if reason and not was:
            words = f"{drafter} parked: {reason} (estimated gain so far {gain:.2f}×)"
        elif was and not reason:
            words = f"{drafter} drafts again (estimated gain so far {gain:.2f}×)"
        else:
            continue
        request.state_changes.append(f"step {len(request.lengths)}: {words}")


def _lines(request: _Request, longest: int) -> Iterator[str]:
    opened = request.opened
    band = TEMPERATURE_BANDS[temperature_band(opened.temperature)]
    longest = longest if opened.n_max is None else min(opened.n_max, longest)
    drafters = ", ".join(drafter for drafter, *_ in opened.standings) or "none"
    yield (
        f"request {opened.request_id}: temperature {opened.temperature:g} (band {band}),"
        f" drafters {drafters}, mode {opened.mode.value}, at most {longest}"
    )
    if request.lengths:
        # Without drafters there is no estimate.
        has_estimate = opened.standings and request.step_s
        gain = f", gain {request.plain_s / request.step_s:.2f}×" if has_estimate else ""
        yield f"    {len(request.lengths)} steps, {request.n_tokens} tokens{gain}"
    for drafter, counts in request.counts_by_drafter.items():
        share = f" ({counts.n_accepted / counts.n_sent:.0%})" if counts.n_sent else ""
        yield (
            f"    {drafter}: {counts.n_guessed} guessed, {counts.n_sent} sent,"
            f" {counts.n_accepted} accepted{share}"
        )
    if any(request.lengths):
        yield f"    lengths {length_digits(request.lengths)}"
    yield from (f"    {state_change}" for state_change in request.state_changes)
    if request.final_state:
        yield f"    final state: {request.final_state}"


def length_digits(lengths: Sequence[int]) -> str:
    """Return a character for each draft length, or for the mean of several steps.

    A dot is 0, a digit itself, and a to g are 10 to 16.
    """
    n_each = -(-len(lengths) // _WIDTH)
    shown = ""
    for at in range(0, len(lengths), n_each):
        some = lengths[at : at + n_each]
        mean = max(round(sum(some) / len(some)), int(any(some)))
        shown += _LENGTH_DIGITS[min(max(mean, 0), MAX_DRAFT)]
    return shown if n_each == 1 else f"{shown} (each of {n_each} steps)"
