"""State and reason of an answer: consistent, and present whenever nothing was drafted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import DrafterKind, NoPair, SpeculationState, SpeculationStats
from specd.engine.backend import DecodeFailed
from specd.engine.speculation import DrafterFacts
from specd.engine.speculative.budget import BUDGET_SPENT
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_model import DraftJob
from specd.engine.speculative.drafter_stats import DOES_NOT_PAY, LOW_ACCEPTANCE
from tests.engine.test_loop import CHEAP, Engine, answer

ACTIVE, PARKED, OFF = SpeculationState.ACTIVE, SpeculationState.PARKED, SpeculationState.OFF
#: Machines on which drafting pays, hardly does, and never does: a wide pass, a drafted token.
COSTS = [(CHEAP, 0.01), ({1: 1.0, 17: 4.0}, 0.3), ({1: 1.0, 17: 17.0}, 2.0)]
NONE = DrafterFacts(reason=NoPair.NOT_FOUND, detail="No drafter was found.")


def stats_of(engine: Engine, **fields: object) -> SpeculationStats:
    return answer(engine, **fields)[1].speculation


def is_consistent(stats: SpeculationStats) -> bool:
    if stats.state is OFF:
        return bool(stats.reason) and not stats.draft_n
    if stats.state is PARKED:
        return stats.reason in {DOES_NOT_PAY, LOW_ACCEPTANCE, BUDGET_SPENT}
    rests = stats.reason in {DOES_NOT_PAY, LOW_ACCEPTANCE, BUDGET_SPENT}
    why_none = stats.pair_source == "builtin" or not stats.draft_n
    return not rests and bool(stats.reason) == why_none


@settings(max_examples=80, deadline=None)
@given(
    agreement=st.sampled_from([None, 0.0001, 0.5, 0.9, 1.0]),
    costs=st.sampled_from(COSTS),
    words=st.sampled_from([("HELLO",), ("ABABABABABABAB",)]),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    lengths=st.lists(st.integers(0, 80), min_size=1, max_size=3),
    n_draft=st.sampled_from([None, 0, 1, 16]),
    drafters=st.sampled_from([(), (DrafterKind.MODEL,), tuple(DrafterKind)]),
)
def test_state_and_reason_are_consistent(
    agreement: float | None,
    costs: tuple[dict[int, float], float],
    words: tuple[str],
    temperature: float,
    lengths: Sequence[int],
    n_draft: int | None,
    drafters: tuple[DrafterKind, ...],
) -> None:
    engine = Engine(agreement=agreement, facts=NONE if agreement is None else None, n_slots=2)
    engine.controller.costs = CostModel(costs[0], costs[1], 1e-6)
    for request_id, n_predict in enumerate(lengths, 1):
        engine.submit(
            request_id,
            prompt=words,
            temperature=temperature,
            n_predict=n_predict,
            n_draft_max=n_draft,
            drafters=drafters,
        )
    engine.run()
    for request_id in range(1, len(lengths) + 1):
        stats = engine.done(request_id).speculation
        assert is_consistent(stats), stats


@pytest.mark.parametrize("n_predict", [0, 1, 2])
def test_an_answer_too_short_for_a_draft_says_so(n_predict: int) -> None:
    stats = stats_of(Engine(), n_predict=n_predict)
    assert (stats.state, stats.reason, stats.draft_n) == (ACTIVE, "answer_too_short", 0)
    assert "too short" in stats.detail


def test_a_prompt_too_long_for_the_drafter_is_reported() -> None:
    engine = Engine(agreement=1.0)
    engine.controller.costs = CostModel({1: 1.0, 17: 1.1}, 0.01, 50.0)
    stats = stats_of(engine, n_predict=60, drafters=(DrafterKind.MODEL,))
    assert (stats.state, stats.reason, stats.draft_n) == (ACTIVE, "prompt_too_long", 0)
    assert "to read the prompt" in stats.detail


def test_no_good_guess_is_reported() -> None:
    engine = Engine(agreement=0.0001)
    engine.controller.costs = CostModel({1: 1.0, 17: 17.0}, 0.0001, 1e-6)
    stats = stats_of(engine, n_predict=12, temperature=1.5)
    assert (stats.state, stats.reason, stats.draft_n) == (ACTIVE, "no_good_guess", 0)
    assert stats.detail


def test_lookup_without_a_match_is_reported_without_a_model() -> None:
    nobody = Engine(agreement=None, facts=DrafterFacts())
    stats = stats_of(nobody, prompt=("AB",), n_predict=4)
    assert (stats.state, stats.reason, stats.draft_n) == (ACTIVE, "no_good_guess", 0)


def test_a_failed_drafter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()

    def fail(jobs: Sequence[DraftJob]) -> int:
        raise DecodeFailed("no")

    drafter = engine.loop.speculation.drafter
    assert drafter is not None
    monkeypatch.setattr(drafter, "draft", fail)
    stats = stats_of(engine, drafters=(DrafterKind.MODEL,))
    assert (stats.state, stats.reason, stats.draft_n) == (ACTIVE, "drafter_failed", 0)


def test_a_parked_model_beside_an_active_lookup_is_a_detail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(agreement=1.0)
    monkeypatch.setattr(engine.controller, "state", lambda _: (ACTIVE, DOES_NOT_PAY))
    stats = stats_of(engine)
    assert (stats.state, stats.reason) == (ACTIVE, "")
    assert stats.draft_n > 0
    assert (
        stats.detail == "the draft model is parked: its drafts take longer than they save;"
        " prompt lookup drafts instead"
    )
    monkeypatch.setattr(engine.controller, "state", lambda _: (PARKED, DOES_NOT_PAY))
    engine.submit(2)
    engine.run()
    stats = engine.done(2).speculation
    assert (stats.state, stats.reason) == (PARKED, DOES_NOT_PAY)
    assert stats.detail == "the draft model is parked: its drafts take longer than they save"


def test_stats_show_the_break_even_acceptance() -> None:
    engine = Engine(max_draft=4)
    shown = stats_of(engine).threshold
    assert shown is not None
    assert shown == pytest.approx(engine.controller.costs.break_even(4), rel=0.1)
    # The costs have been kept fresh since: the next answer shows theirs.
    engine.controller.costs = CostModel({1: 1.0, 5: 1.4}, 0.1)
    engine.submit(2, n_predict=1)
    engine.run()
    assert engine.done(2).speculation.threshold == pytest.approx((1.4 + 4 * 0.1 - 1.0) / 4)


def test_stats_show_the_users_threshold() -> None:
    facts = DrafterFacts(name="tiny", pair_source="manifest", threshold=0.55)
    assert stats_of(Engine(facts=facts)).threshold == 0.55


def test_stats_without_drafts_show_no_threshold() -> None:
    facts = DrafterFacts(name="tiny", pair_source="manifest", threshold=0.55)
    assert stats_of(Engine(facts=facts), n_draft_max=0).threshold is None
    assert stats_of(Engine(facts=facts, rewind_limit=0)).threshold is None
    assert stats_of(Engine(), drafters=()).threshold is None


def test_prompt_lookup_alone_has_a_threshold_once_a_wide_pass_was_measured() -> None:
    engine = Engine(agreement=None, facts=NONE)
    engine.controller.costs = CostModel({1: 1.0})
    assert stats_of(engine, n_predict=1).threshold is None
    engine.controller.observe_target(4, 1.3)
    engine.submit(2, n_predict=1)
    engine.run()
    shown = engine.done(2).speculation.threshold
    assert shown is not None
    assert shown == engine.controller.costs.break_even(16)


def test_a_drafter_that_can_never_pay_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    monkeypatch.setattr(engine.controller, "state", lambda _: (PARKED, DOES_NOT_PAY))
    engine.controller.costs = CostModel({1: 1.0, 17: 17.0}, 2.0)
    stats = stats_of(engine, n_predict=1)
    assert stats.threshold == 1.0
    assert stats.detail == (
        "the draft model is parked: its drafts take longer than they save,"
        " even if every drafted token is accepted"
    )
