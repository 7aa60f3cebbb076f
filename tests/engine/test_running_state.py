"""The loop over recurrent models: the rewind limit also limits drafts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import SpeculationMode
from specd.engine.backend import Batch
from specd.engine.loop import Loop
from specd.engine.speculation import DrafterFacts
from specd.engine.speculative.controller import Controller
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_model import DraftModel
from tests.engine.test_loop import CHEAP, VOCABULARY, Clock, Engine, answer
from tests.fakes.backend import FakeBackend

FIXED = SpeculationMode.FIXED


class Watched(FakeBackend):
    """Record, in order, how many rows each slot has in each pass that reads no prompt."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.groups: list[list[int]] = []

    def decode(self, batch: Batch) -> None:
        super().decode(batch)
        if all(batch.wants_logits):
            self.groups.append(list(Counter(batch.slots).values()))


def engine_of(target: FakeBackend, drafter: FakeBackend, *, n_slots: int = 1) -> Engine:
    engine = Engine(n_slots=n_slots)
    engine.target = target
    engine.loop = Loop(
        target,
        VOCABULARY,
        Controller(CostModel(CHEAP, 0.01, 0.001), 0.4),
        engine.said.append,
        n_ctx=256,
        n_slots=n_slots,
        drafter=DraftModel(drafter, VOCABULARY, n_slots),
        drafter_facts=DrafterFacts(name="tiny"),
        clock_ns=Clock(),
    )
    return engine


@settings(max_examples=40, deadline=None)
@given(
    limit=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 2**64 - 1),
    agreement=st.sampled_from([0.5, 0.9, 1.0]),
    n_draft=st.integers(1, 16),
    drafter_limit=st.sampled_from([0, None]),
)
def test_text_does_not_depend_on_the_rewind_limit(
    limit: int, seed: int, agreement: float, n_draft: int, drafter_limit: int | None
) -> None:
    """The fakes refuse every rewind that a running state could not follow."""
    target = Watched(rewind_limit=limit, n_batch=64)
    drafter = FakeBackend(agreement=agreement, rewind_limit=drafter_limit, n_vocab=70, salt=3)
    plain, _ = answer(Engine(), seed=seed, n_draft_max=0, n_predict=40)
    drafted, _ = answer(
        engine_of(target, drafter), seed=seed, n_draft_max=n_draft, mode=FIXED, n_predict=40
    )
    assert drafted == plain
    assert max(rows for groups in target.groups for rows in groups) <= limit + 1


def test_drafts_of_a_shared_pass_have_one_length_after_plain_slots() -> None:
    n_slots = 4
    target = Watched(n_slots, rewind_limit=8, n_batch=64, eog_bias=-50)
    engine = engine_of(target, FakeBackend(n_slots, agreement=0.9), n_slots=n_slots)
    for at in range(n_slots):
        engine.submit(at, n_draft_max=at, mode=FIXED, n_predict=30 + at, prompt=("HELLO" * at,))
    engine.run()
    shared = [groups for groups in target.groups if len(groups) == n_slots]
    assert any(max(groups) > 1 for groups in shared)
    for groups in target.groups:
        assert groups == sorted(groups)
        assert len({rows for rows in groups if rows > 1}) <= 1


@pytest.mark.parametrize("mode", [SpeculationMode.AUTO, FIXED])
def test_a_drafter_at_its_checkpoint_rereads_accepted_tokens(
    mode: SpeculationMode,
) -> None:
    drafter = FakeBackend(agreement=0.7, rewind_limit=0, salt=3)
    engine = engine_of(FakeBackend(n_batch=64, eog_bias=-50), drafter)
    text, done = answer(engine, mode=mode, n_predict=60, seed=5)
    assert 0 < done.speculation.draft_n_accepted < done.speculation.draft_n
    assert text == answer(Engine(eog_bias=-50), n_predict=60, seed=5, n_draft_max=0)[0]


def test_a_context_that_cannot_shift_is_read_again() -> None:
    said = []
    for can_shift in (True, False):
        engine = Engine(n_ctx=32, eog_bias=-50, can_shift=can_shift)
        text, done = answer(engine, n_predict=100, seed=9)
        assert done.usage.n_generated == 100
        said.append(text)
    assert said[0] == said[1]
