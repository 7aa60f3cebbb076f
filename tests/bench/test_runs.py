"""Test runs of one answer and of several concurrent ones."""

from __future__ import annotations

import pytest

from specd import core
from specd.bench.mode import AUTO, PEER_PLAIN, Mode
from specd.bench.runs import Answer, Run, combine_answers


def answer(n_generated: int, seconds: float, text: str = "a") -> Answer:
    return Answer(
        text,
        core.Usage(
            n_prompt=5,
            n_cached=2,
            n_generated=n_generated,
            generate_ns=round(seconds * 1e9),
            native_ns=round(seconds * 0.5e9),
        ),
        core.SpeculationStats(
            draft_n=6,
            draft_n_accepted=4,
            lookup_n=2,
            lookup_n_accepted=1,
            rounds=3,
            n_steps=4,
            state=core.SpeculationState.ACTIVE,
            drafted_per_depth=(3, 3) if n_generated > 10 else (3, 2, 1),
            accepted_per_depth=(3, 1) if n_generated > 10 else (3, 1, 0),
        ),
    )


def run(*answers: Answer, mode: Mode = AUTO, wall_s: float = 4.0) -> Run:
    return combine_answers(
        answers, workload="qa", temperature=0.8, prompt=3, repeat=1, mode=mode, wall_s=wall_s
    )


def test_one_answer_is_timed_by_its_server_from_the_first_token_on() -> None:
    made = run(answer(21, 2.0))
    assert (made.n_generated, made.n_timed) == (21, 20)
    assert made.seconds == pytest.approx(2.0)
    assert made.tokens_per_s == pytest.approx(10)
    assert made.overhead_ms == pytest.approx(50)
    assert (made.prompt, made.repeat, made.streams) == (3, 1, 1)


def test_concurrent_answers_are_timed_by_wall_time_together() -> None:
    made = run(answer(21, 2.0, "a"), answer(9, 1.0, "b"))
    assert (made.n_timed, made.seconds, made.tokens_per_s) == (30, 4.0, 7.5)
    assert made.overhead_ms is None
    assert (made.streams, made.texts, made.n_prompt, made.n_cached) == (2, ("a", "b"), 10, 4)
    assert (made.n_drafted, made.n_accepted, made.rounds, made.n_steps) == (12, 8, 6, 8)
    assert (made.n_looked_up, made.n_looked_up_accepted) == (4, 2)
    assert (made.drafted_per_depth, made.accepted_per_depth) == ((6, 5, 1), (6, 2, 0))


def test_an_empty_answer_has_no_speed() -> None:
    made = run(Answer("", core.Usage(), core.SpeculationStats()))
    assert (made.n_timed, made.tokens_per_s, made.overhead_ms) == (0, 0.0, None)


def test_only_our_own_runs_have_a_state() -> None:
    assert run(answer(21, 1.0)).state == "active"
    assert run(answer(21, 1.0), mode=PEER_PLAIN).state == ""
