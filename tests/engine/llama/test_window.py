"""Sliding windows: less memory, and prefixes that are reused only while their window is whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import Done, SpeculationMode
from specd.engine.sampler import Row
from specd.engine.slot import common_prefix
from tests.engine.llama.conftest import Engine, Recorder, load
from tests.gguf_architectures import SMALL, write_gemma3

WINDOW = 32
#: Rows of one text differ by as little as this, wherever its cells lie in the cache.
IN_FULL: dict[str, Any] = {"kv_cache_type": "f32", "flash_attention": False, "n_batch": 64}
ROUNDING = 0.005
#: A text much longer than the window; every prompt is a prefix of it with a different end.
TEXT = tuple(at * 37 % 250 for at in range(900))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("window") / "gemma3.gguf"
    return write_gemma3(path, shape=replace(SMALL, n_ctx=8192), sliding_window=WINDOW)


@pytest.fixture(scope="module")
def used(gemma: Path) -> Engine:
    return load(gemma, gemma, n_ctx=1024, n_slots=2, **IN_FULL)


@pytest.fixture(scope="module")
def fresh(gemma: Path) -> Engine:
    return load(gemma, n_ctx=1024, **IN_FULL)


def rows_of(engine: Engine, prompt: tuple[int, ...], **fields: Any) -> tuple[Done, dict[int, Row]]:
    """Return the end of an answer, and the row at each position it was drawn from."""
    recorder = Recorder(engine.loaded.target)
    engine.loop.target = recorder
    _, done = engine.answer(prompt, want_context=True, **fields)
    engine.loop.target = engine.loaded.target
    return done, {position: row for (_, position), row in recorder.rows.items()}


def assert_same_text(a: tuple[Done, dict[int, Row]], b: tuple[Done, dict[int, Row]]) -> None:
    """Assert equal texts up to a near tie, which rounding may decide."""
    n_prompt = a[0].usage.n_prompt
    n_same = common_prefix(list(a[0].context), list(b[0].context))
    assert n_same >= n_prompt
    for position in range(n_prompt - 1, min(n_same, *map(len, (a[0].context, b[0].context))) - 1):
        assert np.abs(a[1][position] - b[1][position]).max() < ROUNDING


PROMPT = st.tuples(st.integers(0, 800), st.lists(st.integers(0, 250), min_size=1, max_size=60))


@settings(max_examples=6, deadline=None)
@given(prompts=st.lists(PROMPT, min_size=4, max_size=8), seed=st.integers(0, 99))
def test_a_reused_prefix_gives_the_text_of_a_fresh_engine(
    used: Engine, fresh: Engine, prompts: list[tuple[int, list[int]]], seed: int
) -> None:
    for n_shared, end in prompts:
        prompt = (*TEXT[:n_shared], *end)
        fields = {"seed": seed, "n_predict": 12}
        said = rows_of(used, prompt, n_draft_max=4, mode=SpeculationMode.FIXED, **fields)
        fresh.loop.rewind(fresh.loop.slots[0], 0)
        expected = rows_of(fresh, prompt, **fields)
        assert expected[0].usage.n_cached == 0
        assert_same_text(said, expected)


def test_a_windowed_prefix_is_reused_only_near_its_end(used: Engine) -> None:
    for slot in used.loop.slots:
        used.loop.rewind(slot, 0)

    def n_cached(*prompt: int) -> int:
        return used.answer(prompt, n_predict=4)[1].usage.n_cached

    assert n_cached(*TEXT) == 0
    assert n_cached(*TEXT[:-5], 1) == len(TEXT) - 5
    for slot in used.loop.slots[1:]:
        used.loop.rewind(slot, 0)
    assert n_cached(*TEXT[:300], 1) == 0


def test_a_long_answer_continues_after_rereading(gemma: Path, fresh: Engine) -> None:
    engine = load(gemma, gemma, n_ctx=512, n_slots=2, **IN_FULL)
    assert not engine.loaded.target.can_shift
    fixed = {"n_draft_max": 4, "mode": SpeculationMode.FIXED}
    done, rows = rows_of(engine, TEXT[:400], n_predict=500, seed=3, **fixed)
    assert done.usage.n_generated == 500
    assert done.speculation.draft_n_accepted > 300, "the drafter's positions are wrong"
    # The last token depends on what is left of the text, whatever was read before.
    left = tuple(done.context[:-1])
    fresh.loop.rewind(fresh.loop.slots[0], 0)
    _, right = rows_of(fresh, left, n_predict=1)
    assert np.abs(rows[len(left) - 1] - right[len(left) - 1]).max() < ROUNDING


def test_a_cache_within_the_window_shifts(gemma: Path) -> None:
    engine = load(gemma, n_ctx=256, n_batch=256)
    assert engine.loaded.target.can_shift
    assert engine.answer(TEXT[:200], n_predict=150)[1].usage.n_generated == 150


def test_a_windowed_cache_takes_the_memory_of_its_window(gemma: Path) -> None:
    """Twice the context costs no more than that of the layers that look at all of it."""
    lean: dict[str, Any] = {"flash_attention": True, "kv_cache_type": "f16", "n_batch": 32}
    short, long = (load(gemma, n_ctx=n, **lean).loaded.facts.target for n in (4096, 8192))
    n_bytes = 2 * SMALL.n_embd * 2 * SMALL.n_layer
    assert long.total_bytes - short.total_bytes < 0.75 * 4096 * n_bytes
