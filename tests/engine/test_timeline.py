"""The timeline of a request's speculation."""

from __future__ import annotations

from specd.core import SpeculationMode, SpeculationState
from specd.engine.speculative.controller import MODEL
from specd.engine.speculative.timeline import Timelines, length_digits
from specd.engine.speculative.trace import Call, Close, ObserveStep, Open, State, StepEstimate
from tests.engine.traces import run


def timeline_lines(calls: list[Call]) -> list[str]:
    timelines = Timelines()
    lines = [line for call in calls for line in timelines.add_call(call)]
    return [*lines, *timelines.unfinished()]


def test_a_timeline_shows_the_steps_of_a_request() -> None:
    def step(n_sent: int, n_accepted: int, parked: str, gain: float) -> ObserveStep:
        guesses = [("model", [1.0] * 3, n_accepted, 3)]
        estimate = StepEstimate(2.0, 1.0, [("model", parked, gain)])
        return ObserveStep(1, "model" if n_sent else "", n_sent, n_accepted, guesses, estimate)

    assert timeline_lines(
        [
            Open(1, None, SpeculationMode.AUTO, 0.8, [MODEL], [("model", "low_acceptance", 1.0)]),
            step(0, 0, "low_acceptance", 1.0),
            step(2, 2, "", 1.5),
            step(3, 1, "does_not_pay", 0.6),
            State(1, (SpeculationState.PARKED, "does_not_pay")),
            Close(1),
        ]
    ) == [
        "request 1: temperature 0.8 (band 0.5 to 1), drafters model, mode auto, at most 16",
        "    3 steps, 6 tokens, gain 1.00×",
        "    model: 9 guessed, 5 sent, 3 accepted (60%)",
        "    lengths .23",
        "    step 1: model starts parked because of earlier requests: low_acceptance",
        "    step 2: model drafts again (estimated gain so far 1.50×)",
        "    step 3: model parked: does_not_pay (estimated gain so far 0.60×)",
        "    final state: parked does_not_pay",
    ]


def test_a_timeline_shows_parking() -> None:
    calls: list[Call] = []
    run(calls.append, 200, n_right=0)
    assert any("model parked: " in line for line in timeline_lines(calls))


def test_unfinished_and_plain_requests_are_shown() -> None:
    plain = Open(2, 0, SpeculationMode.AUTO, 0.0, [], [])
    first, last = timeline_lines([plain])
    assert "temperature 0 (band 0), drafters none" in first
    assert last == "    not ended"
    # A trace whose requests began before it gives no timeline.
    assert timeline_lines([Close(3), State(3, (SpeculationState.OFF, ""))]) == []


def test_lengths_of_a_long_answer_are_means() -> None:
    assert length_digits([0, 1, 9, 10, 16]) == ".19ag"
    long = length_digits([4] * 60 + [0] * 59 + [1])
    assert long == "4" * 30 + "." * 29 + "1 (each of 2 steps)"


def test_plain_decoding_shows_no_gain() -> None:
    step = ObserveStep(1, "", 0, 0, [], StepEstimate(1.0, 2.0, []))
    plain = Open(1, 0, SpeculationMode.AUTO, 0.0, [MODEL], [])
    head, line = timeline_lines([plain, step, Close(1)])
    assert "drafters none" in head
    assert line == "    1 steps, 1 tokens"
