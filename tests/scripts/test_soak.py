"""The soak's own judgement: what counts as an end, as growth, as the same hour."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.soak import hour
from scripts.soak.asks import PAIR
from scripts.soak.clients import End, Outcome
from scripts.soak.dialects import Dialect, Reading, Unreadable, events_of, whole
from scripts.soak.findings import is_unexplained, percentile
from scripts.soak.gauges import growth
from scripts.soak.session import Killed, Question, Record

MIB = 2**20

STREAMS: dict[Dialect, list[Any]] = {
    Dialect.OLLAMA: [
        {"response": "a", "done": False},
        {"message": {"content": "b"}, "done": False},
        {"response": "", "done": True},
    ],
    Dialect.OPENAI: [
        {"choices": [{"delta": {"role": "assistant", "content": "a"}}]},
        {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]},
        "[DONE]",
    ],
    Dialect.COMPLETIONS: [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, "[DONE]"],
    Dialect.RESPONSES: [
        {"type": "response.created"},
        {"type": "response.output_text.delta", "delta": "ab"},
        {"type": "response.completed", "response": {}},
    ],
    Dialect.ANTHROPIC: [
        {"type": "message_start"},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ab"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ],
}
ERRORS: dict[Dialect, Any] = {
    Dialect.OLLAMA: {"error": "it broke"},
    Dialect.OPENAI: {"error": {"message": "it broke"}},
    Dialect.COMPLETIONS: {"error": {"message": "it broke"}},
    Dialect.RESPONSES: {"type": "response.failed", "response": {"error": {"message": "it broke"}}},
    Dialect.ANTHROPIC: {"type": "error", "error": {"message": "it broke"}},
}


def read(dialect: Dialect, events: Sequence[Any]) -> Reading:
    reading = Reading()
    for event in events:
        reading.take(dialect, event)
    return reading


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_stream_ends_once_in_its_own_words(dialect: Dialect) -> None:
    whole_stream = STREAMS[dialect]
    reading = read(dialect, whole_stream)
    assert ("".join(reading.parts), reading.n_ends, reading.n_late) == ("ab", 1, 0)
    assert read(dialect, whole_stream[:-1]).n_ends == 0
    assert read(dialect, [*whole_stream, whole_stream[-1]]).n_ends == 2
    assert read(dialect, [whole_stream[-1], *whole_stream[:-1]]).n_late == len(whole_stream) - 1


@pytest.mark.parametrize("dialect", ERRORS)
def test_an_error_is_an_end_too_and_not_a_second_one(dialect: Dialect) -> None:
    reading = read(dialect, [*STREAMS[dialect][:-1], ERRORS[dialect]])
    assert (reading.n_ends, reading.error) == (1, "it broke")
    assert read(dialect, [*STREAMS[dialect], ERRORS[dialect]]).n_ends == 2


def test_lines_that_say_nothing_are_no_events_and_what_is_no_json_is_not_passed_over() -> None:
    assert events_of(b"event: message_stop\n", sse=True) is None
    assert events_of(b"\n", sse=False) is None
    assert events_of(b"data: [DONE]\n", sse=True) == "[DONE]"
    with pytest.raises(Unreadable):
        events_of(b'{"response": "a', sse=False)


@pytest.mark.parametrize(
    "dialect, answer",
    [
        (Dialect.OLLAMA, {"response": "a", "done": False}),
        (Dialect.OPENAI, {"choices": [{"message": {"content": "a"}, "finish_reason": None}]}),
        (Dialect.RESPONSES, {"status": "in_progress", "output": []}),
        (Dialect.ANTHROPIC, {"stop_reason": None, "content": []}),
    ],
)
def test_an_object_that_does_not_say_how_it_ended_is_no_answer(
    dialect: Dialect, answer: Any
) -> None:
    with pytest.raises(Unreadable):
        whole(dialect, 200, json.dumps(answer).encode())


def test_an_error_without_a_sentence_is_no_end() -> None:
    assert whole(Dialect.OLLAMA, 500, b"{}").n_ends == 0
    assert whole(Dialect.OLLAMA, 404, b'{"error": "model not found"}').n_ends == 1


# --------------------------------------------------------------------------- errors


def failed(began_s: float, ended_s: float, end: End = End.FAILED, status: int = 200) -> Outcome:
    ask = next(ask for ask in hour.ROLES[0].asks() if ask.model == PAIR)
    return Outcome(
        role="editor",
        ask=ask,
        streamed=True,
        end=end,
        status=status,
        n_ends=1,
        text="",
        began_s=began_s,
        ended_s=ended_s,
        first_byte_s=None,
    )


def test_only_a_killed_engine_of_its_own_model_explains_an_error() -> None:
    record = Record(question=Question(), kills=[Killed(10.0, PAIR)])
    assert not is_unexplained(record, failed(9.0, 11.0))
    assert not is_unexplained(record, failed(11.0, 11.1, End.REFUSED, 500))
    assert is_unexplained(record, failed(14.0, 15.0))
    assert is_unexplained(record, failed(8.0, 9.0))
    record.kills = [Killed(10.0, "another")]
    assert is_unexplained(record, failed(9.0, 11.0))


def test_what_must_be_refused_is_no_error_and_must_not_be_answered() -> None:
    record = Record(question=Question())
    refused = failed(1.0, 2.0, End.REFUSED, 404)
    assert is_unexplained(record, refused)
    asked = replace(refused, ask=replace(refused.ask, expected=404))
    assert not is_unexplained(record, asked)
    assert is_unexplained(record, replace(asked, end=End.DONE, status=200))


# --------------------------------------------------------------------------- growth


def test_growth_is_found_however_it_comes() -> None:
    times = [float(second) for second in range(300)]
    steady = [100.0 * MIB] * 300
    leak = [(100 + second * 0.02) * MIB for second in range(300)]
    step = steady[:250] + [110.0 * MIB] * 50
    spikes = [110.0 * MIB if second % 10 == 0 else 100.0 * MIB for second in range(300)]
    for values, grows in ((steady, False), (leak, True), (step, True), (spikes, False)):
        grown = growth(times, values)
        assert grown is not None
        assert (grown.worst > 0.02) == grows
    assert growth(times[:5], steady[:5]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_lies_among_the_values(values: list[float], share: float) -> None:
    assert min(values) <= percentile(values, share) <= max(values)


# --------------------------------------------------------------------------- the hour


def test_the_hour_has_sixteen_clients_and_is_the_same_for_the_same_seed() -> None:
    roles = hour.played_roles(16)
    assert {role.name for role in roles} == {role.name for role in hour.ROLES}
    assert len(hour.played_roles(20)) == 20

    def turns(seed: str) -> list[hour.Turn]:
        return [turn for role in roles for turn in hour.turns_of(role, seed, 600.0, 6.0)]

    played = turns("0")
    assert played == turns("0")
    assert played != turns("1")
    expected = sum(role.n * role.per_hour for role in hour.ROLES)
    assert len(played) == pytest.approx(expected, rel=0.1)
    assert hour.kills_of("0", 600.0, 6.0) == hour.kills_of("0", 600.0, 6.0)


def test_the_pair_is_left_alone_over_the_last_half() -> None:
    kills = hour.kills_of("0", 600.0, 6.0)
    assert len(kills) == hour.KILLS
    assert all(kill.spares_pair for kill in kills if kill.due_s > 300)
    assert any(not kill.spares_pair for kill in kills)
