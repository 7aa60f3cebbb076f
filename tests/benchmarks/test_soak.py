"""Test how the soak judges ends, growth and schedules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak import traffic
from benchmarks.soak.clients import End, Outcome
from benchmarks.soak.daemon_monitor import DraftingStats
from benchmarks.soak.dialects import BadResponse, Dialect, Reading, events_of, whole
from benchmarks.soak.request_log import count_log_lines, find_bad_log_lines
from benchmarks.soak.request_mix import PAIR
from benchmarks.soak.resource_monitor import ProcessUsage, Sample, by_generation, growth
from benchmarks.soak.results import is_unexplained, percentile
from benchmarks.soak.session import Killed, SoakConfig, SoakRecord
from tests.fast import computes_long

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
def test_each_dialect_ends_a_stream_once(dialect: Dialect) -> None:
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


def test_empty_lines_are_not_events_and_invalid_json_is_an_error() -> None:
    assert events_of(b"event: message_stop\n", sse=True) is None
    assert events_of(b"\n", sse=False) is None
    assert events_of(b"data: [DONE]\n", sse=True) == "[DONE]"
    with pytest.raises(BadResponse):
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
def test_an_object_without_an_end_is_not_an_answer(dialect: Dialect, answer: Any) -> None:
    with pytest.raises(BadResponse):
        whole(dialect, 200, json.dumps(answer).encode())


def test_an_error_without_a_message_is_not_an_end() -> None:
    assert whole(Dialect.OLLAMA, 500, b"{}").n_ends == 0
    assert whole(Dialect.OLLAMA, 404, b'{"error": "model not found"}').n_ends == 1


# --------------------------------------------------------------------------- errors


def failed(began_s: float, ended_s: float, end: End = End.FAILED, status: int = 200) -> Outcome:
    ask = next(ask for ask in traffic.ROLES[0].request_mix() if ask.model == PAIR)
    return Outcome(
        id="1",
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
    record = SoakRecord(config=SoakConfig(), kills=[Killed(10.0, PAIR)])
    assert not is_unexplained(record, failed(9.0, 11.0))
    assert not is_unexplained(record, failed(11.0, 11.1, End.REFUSED, 500))
    assert is_unexplained(record, failed(14.0, 15.0))
    assert is_unexplained(record, failed(8.0, 9.0))
    record.kills = [Killed(10.0, "another")]
    assert is_unexplained(record, failed(9.0, 11.0))


def test_a_correct_refusal_is_not_an_error() -> None:
    record = SoakRecord(config=SoakConfig())
    refused = failed(1.0, 2.0, End.REFUSED, 404)
    assert is_unexplained(record, refused)
    asked = replace(refused, ask=replace(refused.ask, expected=404))
    assert not is_unexplained(record, asked)
    assert is_unexplained(record, replace(asked, end=End.DONE, status=200))


def test_every_request_the_daemon_read_has_one_log_line() -> None:
    log = [
        json.dumps({"logger": logger, "request_id": key})
        for logger, key in (("specd.requests", "1"), ("specd.else", "1"), ("specd.requests", "2"))
    ]
    lines = count_log_lines([*log, "no JSON", log[-1]])
    assert lines == {"1": 1, "2": 2}
    once, twice, never = (replace(failed(1.0, 2.0), id=key) for key in "123")
    unheard = replace(never, end=End.LEFT)
    answered = replace(unheard, first_byte_s=1.5)
    assert find_bad_log_lines(lines, [once, twice, never, unheard, answered]) == [
        twice,
        never,
        answered,
    ]


# --------------------------------------------------------------------------- growth


@computes_long  # imports scipy.stats
def test_growth_is_found_as_slope_step_or_spike() -> None:
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


@computes_long
def test_engines_of_random_sizes_do_not_count_as_growth() -> None:
    times = [40.0 * engine for engine in range(10)]
    chance = [150.0, 147, 152, 149, 146, 153, 148, 151, 154, 152]
    for values, surely in ((chance, False), ([150 * 1.01**n for n in range(10)], True)):
        grown = growth(times, [value * MIB for value in values], enough=5)
        assert grown is not None
        assert grown.surely <= grown.by_slope
        assert (grown.surely > 0.02) == surely


def held(age_s: float, n_ctx: int, rss_mib: int) -> ProcessUsage:
    return ProcessUsage(rss_bytes=rss_mib * MIB, n_fds=1, n_threads=1, age_s=age_s, n_ctx=n_ctx)


def test_engines_are_compared_at_the_same_age_and_with_the_same_context() -> None:
    held_by = [
        {("a", 1): held(1, 4096, 1)},  # too young
        {("a", 1): held(9, 4096, 10)},
        {("a", 1): held(10, 4096, 12)},
        {("a", 2): held(9, 8192, 50), ("b", 3): held(9, 0, 7)},
        {("a", 4): held(9, 4096, 20)},
        {("a", 4): held(90, 4096, 99)},  # too old
    ]
    samples = [
        Sample(
            at_s=float(second),
            daemon=held(0, 0, 0),
            engines=engines,
            n_processes=1,
            n_helpers=0,
            n_scratch_files=0,
            state_bytes=0,
        )
        for second, engines in enumerate(held_by)
    ]
    assert by_generation(samples) == {
        ("a", 4096): [(1.5, 11.0 * MIB), (4.0, 20.0 * MIB)],
        ("a", 8192): [(3.0, 50.0 * MIB)],
    }


def test_drafted_tokens_are_summed_over_engines() -> None:
    drafting = DraftingStats()
    for drafter, drafted, accepted in (("d", 10, 5), ("d", 30, 20), (None, 4, 3), (None, 6, 3)):
        told = {"drafter": drafter, "draft_n": drafted, "draft_n_accepted": accepted}
        drafting.update_from_ps(
            [{"name": f"{PAIR}:latest", "specd": told}, {"name": "other:latest"}]
        )
    drafting.update_from_ps([])
    assert (drafting.n_loaded, drafting.n_paired) == (4, 2)
    assert (drafting.drafted, drafting.accepted) == (36, 23)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_lies_among_the_values(values: list[float], share: float) -> None:
    assert min(values) <= percentile(values, share) <= max(values)


# --------------------------------------------------------------------------- the hour


def test_the_hour_has_sixteen_clients_and_is_the_same_for_the_same_seed() -> None:
    roles = traffic.roles_for_clients(16)
    assert {role.name for role in roles} == {role.name for role in traffic.ROLES}
    assert len(traffic.roles_for_clients(20)) == 20

    def turns(seed: str) -> list[traffic.Turn]:
        return [turn for role in roles for turn in traffic.request_schedule(role, seed, 600.0, 6.0)]

    played = turns("0")
    assert played == turns("0")
    assert played != turns("1")
    expected = sum(role.n * role.per_hour for role in traffic.ROLES)
    assert len(played) == pytest.approx(expected, rel=0.1)
    assert traffic.kill_schedule("0", 600.0, 6.0) == traffic.kill_schedule("0", 600.0, 6.0)


def test_the_pairs_engine_is_not_killed_in_the_last_half() -> None:
    kills = traffic.kill_schedule("0", 600.0, 6.0)
    assert len(kills) == traffic.KILLS
    assert all(kill.spares_pair for kill in kills if kill.due_s > 300)
    assert any(not kill.spares_pair for kill in kills)
