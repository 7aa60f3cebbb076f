"""Siblings on real kernels: if drafts are exact, siblings are too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specd.core import EngineSpec, Grammar, GrammarKind, SpeculationMode
from specd.engine.backend import Backend, Batch
from specd.engine.sampler import Row
from specd.engine.worker import make_loop
from tests.engine.llama.conftest import (
    BATCH_INVARIANT,
    DRAFTER,
    TARGET,
    Engine,
    load,
)
from tests.engine.test_siblings import Branching

PROMPTS = ("def walk(", "class Node:\n    def ", "import os\n\ndef main(", "def close(self")
FIXED = {"n_draft_max": 8, "mode": SpeculationMode.FIXED}


class ByText:
    """A backend that stores each row under the whole text before it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._held: list[int] = []
        self._texts: list[tuple[int, ...]] = []
        self._leaves: list[int] = []
        self.rows: dict[tuple[int, ...], Row] = {}
        #: Texts that end in a leaf.
        self.of_leaves: set[tuple[int, ...]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, batch: Batch) -> None:
        self._texts, self._leaves = [], batch.leaves
        for index, (token, position) in enumerate(zip(batch.tokens, batch.positions, strict=True)):
            text = [*self._held[:position], token]
            self._texts.append(tuple(text))
            if index not in batch.leaves:
                self._held = text
        self._backend.decode(batch)

    def row(self, index: int) -> Row:
        row, text = self._backend.row(index), self._texts[index]
        self.rows[text] = row.copy()
        if index in self._leaves:
            self.of_leaves.add(text)
        return row


def branching(**fields: Any) -> tuple[Engine, ByText]:
    """Return the demo pair with siblings for every draft."""
    engine = load(TARGET, DRAFTER, **fields)
    spec = EngineSpec(weights=str(TARGET), drafter=str(DRAFTER), n_ctx=512)
    engine.loop = make_loop(spec, engine.loaded, engine.said.append, Branching())
    recorder = ByText(engine.loaded.target)
    engine.loop.target = recorder
    return engine, recorder


@pytest.mark.parametrize(
    "settings", [BATCH_INVARIANT, {"kv_cache_type": "q8_0", "flash_attention": True}]
)
def test_exact_drafts_equal_plain_decoding(
    settings: dict[str, Any],
) -> None:
    engine, recorder = branching(**settings)
    assert engine.loaded.facts.exact is not None
    if not engine.loaded.facts.exact.speculation:
        pytest.skip("this build has no kernels that are exact")
    n_saved = n_compared = 0
    for seed, prompt in enumerate(PROMPTS * 3):
        draw = {"seed": seed, "n_predict": 64, "want_context": True}
        plain = engine.answer(prompt, n_draft_max=0, **draw)[1]
        expected = dict(recorder.rows)
        recorder.rows.clear()
        drafted = engine.answer(prompt, **FIXED, **draw)[1]
        assert drafted.context == plain.context
        for text in expected.keys() & recorder.rows.keys():
            assert np.array_equal(recorder.rows[text], expected[text])
            n_compared += text in recorder.of_leaves
        recorder.rows.clear()
        n_saved += plain.speculation.n_steps - drafted.speculation.n_steps
    assert n_compared > 50, "too few rows of correct leaves were compared"
    assert n_saved > 100


def test_siblings_follow_the_grammar() -> None:
    engine, recorder = branching(**BATCH_INVARIANT)
    asked = {"grammar": Grammar(kind=GrammarKind.REGEX, text="[a-z]+(, [a-z]+)*"), "n_predict": 40}
    for seed in range(4):
        plain = engine.answer("names = ", seed=seed, n_draft_max=0, **asked)[0]
        assert engine.answer("names = ", seed=seed, **FIXED, **asked)[0] == plain
    assert recorder.of_leaves


@pytest.mark.parametrize("fields", [{"exact": True}, {"exact": True, "n_slots": 2}])
def test_with_exact_there_are_no_siblings(fields: dict[str, Any]) -> None:
    assert load(TARGET, DRAFTER, **BATCH_INVARIANT, **fields).loaded.target.n_leaves == 0


def test_without_a_draft_model_there_are_no_siblings() -> None:
    assert load(TARGET, None, **BATCH_INVARIANT).loaded.target.n_leaves == 0
