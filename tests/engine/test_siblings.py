"""Siblings in the loop: they change the speed of an answer, not its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import Done, SpeculationMode, StopReason
from specd.engine.loop import Loop
from specd.engine.speculation import DrafterFacts
from specd.engine.speculative.controller import MODEL, Controller
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_model import DraftModel
from specd.engine.speculative.draft_proposal import SiblingLimits
from specd.ipc.messages import Finished, ToDaemon, Tokens
from tests.engine.test_loop import CHEAP, VOCABULARY, Clock, make_request
from tests.fakes.backend import FakeBackend
from tests.fast import thinned

N_LEAVES = 3


class Branching(Controller):
    """A controller that sends half of each draft, and siblings wherever it may."""

    def __init__(self) -> None:
        super().__init__(CostModel(CHEAP, 0.01, 1e-6), 0.0)
        self._beside: dict[int, Sequence[int]] = {}

    def choose(
        self, drafts: Sequence[tuple[int, Sequence[float]]], places: Sequence[SiblingLimits] = ()
    ) -> list[tuple[str, int]]:
        chosen = []
        for (request_id, _), place, (kind, n) in zip(
            drafts, places, super().choose(drafts, places), strict=True
        ):
            n_main_rows = n // 2 if kind == MODEL else n
            n_beside = min(place.n_leaves, place.n_rows - n_main_rows)
            there = [at for at in place.at if at <= n_main_rows]
            self._beside[request_id] = there[:n_beside] if kind == MODEL else ()
            chosen.append((kind, n_main_rows))
        return chosen

    def siblings(self, request_id: int) -> Sequence[int]:
        return self._beside.get(request_id, ())


class Engine:
    """A loop over fakes.  agreement None: no drafter."""

    def __init__(
        self,
        agreement: float | None,
        *,
        n_slots: int = 1,
        n_ctx: int = 256,
        n_batch: int = 64,
        n_leaves: int = N_LEAVES,
        **fields: Any,
    ) -> None:
        self.said: list[ToDaemon] = []
        self.target = FakeBackend(n_slots, n_batch=n_batch, n_leaves=n_leaves, **fields)
        self.draft_backend = FakeBackend(
            n_slots, n_batch=n_batch, n_vocab=70, agreement=agreement or 1.0, salt=3
        )
        drafter = DraftModel(self.draft_backend, VOCABULARY, n_slots) if agreement else None
        self.loop = Loop(
            self.target,
            VOCABULARY,
            Branching(),
            self.said.append,
            n_ctx=n_ctx,
            n_slots=n_slots,
            drafter=drafter,
            drafter_facts=DrafterFacts(name="tiny"),
            clock_ns=Clock(),
        )

    def answers(self, *several: dict[str, Any]) -> list[tuple[str, Done]]:
        """Return texts and ends of requests that are submitted together."""
        self.said.clear()
        for number, fields in enumerate(several):
            self.loop.submit(number, make_request(**fields))
        for _ in range(5000):
            if not self.loop.is_busy:
                break
            self.loop.step()
        ends = {m.request_id: m.event for m in self.said if isinstance(m, Finished)}
        found = []
        for number in range(len(several)):
            end = ends[number]
            assert isinstance(end, Done), end
            mine = [m for m in self.said if isinstance(m, Tokens) and m.request_id == number]
            found.append(("".join(m.token.text for m in mine), end))
        return found


FIXED = {"mode": SpeculationMode.FIXED}
DRAW = {
    "seed": st.integers(0, 2**64 - 1),
    "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.5]),
    "repeat_penalty": st.sampled_from([1.0, 1.2]),
    "stop": st.sampled_from([(), ("A",), ("BC", "Zx")]),
    "n_draft_max": st.integers(1, 16),
    "n_predict": st.integers(1, 70),
}


@settings(max_examples=30, deadline=None)
@given(
    asked=st.lists(st.fixed_dictionaries(DRAW), min_size=1, max_size=5),
    agreement=st.sampled_from([0.0001, 0.5, 0.8]),
    n_slots=st.integers(1, 3),
    n_batch=st.sampled_from([9, 30, 100]),
    n_ctx=st.sampled_from([24, 64, 256]),
    mode=st.sampled_from(SpeculationMode),
)
def test_text_does_not_depend_on_siblings(
    *,
    asked: list[dict[str, Any]],
    agreement: float,
    n_slots: int,
    n_batch: int,
    n_ctx: int,
    mode: SpeculationMode,
) -> None:
    several = [{**one, "want_context": True, "mode": mode} for one in asked]
    engine = Engine(agreement, n_slots=n_slots, n_batch=n_batch, n_ctx=n_ctx)
    for one, (text, done) in zip(several, engine.answers(*several), strict=True):
        [(plain_text, plain)] = Engine(None, n_ctx=n_ctx).answers(one)
        assert text == plain_text
        assert done.reason == plain.reason
        assert done.context == plain.context
        assert done.usage.n_generated == plain.usage.n_generated
    for slot in engine.loop.slots:
        assert engine.target.cells[slot.id] == slot.tokens, "cells differ from the tokens"


def test_siblings_save_passes_for_an_inaccurate_drafter() -> None:
    draw = {"n_predict": 120, "n_draft_max": 4, **FIXED}
    passes = []
    for n_leaves in (0, N_LEAVES):
        engine = Engine(0.6, n_leaves=n_leaves, eog_bias=-50)
        [(_, done)] = engine.answers(draw)
        passes.append(done.speculation.n_steps)
        stats = done.speculation
        assert stats.n_steps + stats.draft_n_accepted in range(119, 125)
        assert (engine.target.n_leaf_rows > 0) == (n_leaves > 0)
    assert passes[1] < 0.9 * passes[0]


def test_an_accepted_sibling_is_evaluated_again_and_its_bonus_kept() -> None:
    """The cache then holds what plain decoding would have put there, in order."""
    engine = Engine(0.6, eog_bias=-50)
    engine.answers({"n_predict": 60, "n_draft_max": 4, "want_context": True, **FIXED})
    [slot] = engine.loop.slots
    [(text, done)] = engine.answers({"n_predict": 60, "n_draft_max": 4, **FIXED})
    assert done.usage.n_cached == done.usage.n_prompt - 1
    assert engine.target.cells[0] == slot.tokens
    assert text == Engine(None, eog_bias=-50).answers({"n_predict": 60})[0][0]


def test_an_accepted_sibling_counts_as_one_depth() -> None:
    engine = Engine(0.5, eog_bias=-50)
    [(_, done)] = engine.answers({"n_predict": 200, "n_draft_max": 6, **FIXED})
    stats = done.speculation
    assert stats.draft_n_accepted <= stats.draft_n
    assert sum(stats.accepted_per_depth) == stats.draft_n_accepted
    assert sum(stats.drafted_per_depth) == stats.draft_n
    assert max(stats.accepted_per_depth) <= stats.rounds


def test_a_full_context_ends_or_shifts_as_without_siblings() -> None:
    for shift in (False, True):
        asked = {"n_predict": 100, "shift": shift, "n_draft_max": 6}
        [(text, done)] = Engine(0.6, n_ctx=32, eog_bias=-50).answers({**asked, **FIXED})
        [(plain, end)] = Engine(None, n_ctx=32, eog_bias=-50).answers(asked)
        assert (text, done.reason) == (plain, end.reason)
        assert done.reason is StopReason.LENGTH


@pytest.mark.parametrize("n_keep", range(4))
@pytest.mark.parametrize("n_ctx", [24, 25, 31])
def test_a_shift_drops_what_it_drops_without_siblings(n_ctx: int, n_keep: int) -> None:
    for seed in thinned(range(3), 3):
        asked = {"n_predict": 100, "shift": True, "n_draft_max": 6, "n_keep": n_keep}
        asked |= {"seed": seed, "want_context": True}
        [(text, done)] = Engine(0.6, n_ctx=n_ctx, eog_bias=-50).answers({**asked, **FIXED})
        [(plain, end)] = Engine(None, n_ctx=n_ctx, eog_bias=-50).answers(asked)
        assert (text, done.context) == (plain, end.context)


@pytest.mark.parametrize("rewind_limit", [0, 4])
def test_a_recurrent_state_has_no_siblings(rewind_limit: int) -> None:
    engine = Engine(0.6, n_leaves=0, rewind_limit=rewind_limit)
    asked = {"n_predict": 60, "n_draft_max": 4}
    assert engine.answers({**asked, **FIXED})[0][0] == Engine(None).answers(asked)[0][0]
    assert engine.target.n_leaf_rows == 0
