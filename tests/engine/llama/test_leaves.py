"""Leaves: each row equals the one in the draft's place, and the cache keeps none."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.engine.backend import Batch
from specd.engine.llama import library
from specd.engine.llama.context import LlamaContext
from specd.engine.llama.model import LlamaModel
from specd.engine.sampler import Row
from tests.engine.llama import test_cache
from tests.engine.llama.test_cache import ROUNDING, WRONG
from tests.gguf_architectures import write_qwen2vl
from tests.gguf_files import write_llama

N_SLOTS, N_LEAVES = 2, 4
TOKEN = st.integers(0, 250)


@functools.cache
def model_of(architecture: str) -> LlamaModel:
    if architecture != "qwen2vl":
        return test_cache.model_of(architecture)
    native_log = library.start()
    native_log.begin()
    with tempfile.TemporaryDirectory() as folder:
        return LlamaModel(str(write_qwen2vl(Path(folder) / "m.gguf")), native_log)


@functools.cache
def context_of(architecture: str = "llama", *, n_leaves: int = N_LEAVES) -> LlamaContext:
    return LlamaContext(
        model_of(architecture),
        n_ctx=256,
        n_slots=N_SLOTS,
        n_batch=64,
        n_outputs=64,
        n_threads=1,
        flash_attention=False,
        kv_cache_type="f32",
        n_leaves=n_leaves,
    )


def read(context: LlamaContext, slot: int, tokens: list[int], n_past: int = 0) -> Row:
    """Return the row after the tokens, which start at position n_past."""
    batch = Batch()
    for at, token in enumerate(tokens, start=n_past):
        batch.add(token, at, slot, wants_logits=at == n_past + len(tokens) - 1)
    context.decode(batch)
    return context.row(len(tokens) - 1).copy()


@functools.cache
def fresh(tokens: tuple[int, ...], architecture: str = "llama") -> Row:
    context = context_of(architecture, n_leaves=0)
    context.rewind(0, 0)
    for begin in range(0, len(tokens), 60):
        row = read(context, 0, list(tokens[begin : begin + 60]), begin)
    return row


def same(a: Row, b: Row) -> bool:
    difference = float(np.abs(a - b).max())
    assert not ROUNDING < difference < WRONG, difference
    return difference < ROUNDING


STEP = st.tuples(
    st.integers(0, N_SLOTS - 1),
    st.lists(TOKEN, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 6), TOKEN), max_size=N_LEAVES),
    st.integers(0, 8),
    st.sampled_from(("", "", "", "shift", "empty")),
)


@pytest.mark.parametrize("architecture", ["llama", "qwen2vl"])
@settings(max_examples=20, deadline=None)
@given(steps=st.lists(STEP, min_size=3, max_size=10))
def test_a_leaf_equals_a_row_in_its_place(
    architecture: str, steps: list[tuple[int, list[int], list[tuple[int, int]], int, str]]
) -> None:
    """Run passes with leaves in both slots, with rewinds and cache edits between them."""
    context, held = context_of(architecture), [list[int](), list[int]()]
    for slot in range(N_SLOTS):
        assert context.rewind(slot, 0) == 0
    for slot, line, beside, n_back, edit in steps:
        batch, history = Batch(), held[slot]
        for at, token in enumerate(line, start=len(history)):
            batch.add(token, at, slot, wants_logits=True)
        leaves = {}
        for depth, token in beside:
            if depth <= len(line):
                index = batch.add_leaf(token, len(history) + depth, slot)
                leaves[index] = [*history, *line[:depth], token]
        context.decode(batch)
        for index, before in leaves.items():
            assert same(context.row(index), fresh(tuple(before), architecture))
        for at in range(len(line)):
            assert same(context.row(at), fresh((*history, *line[: at + 1]), architecture))
        history += line
        n_past = max(len(history) - n_back, 0)
        assert context.rewind(slot, n_past) == n_past
        del history[n_past:]
        if edit == "empty":
            assert context.rewind(slot, 0) == 0
            history.clear()
        if edit == "shift" and len(history) > 4 and context.can_shift:
            # The kept cells were computed at later positions: do not compare them, start again.
            context.shift(slot, 1, 2)
            read(context, slot, [9], len(history) - 2)
            assert context.rewind(slot, 0) == 0
            history.clear()


def test_cells_of_leaves_are_freed() -> None:
    """The context is only as long as its text: it would overflow if any leaf stayed."""
    context = context_of()
    for slot in range(N_SLOTS):
        context.rewind(slot, 0)
    for at in range(0, 240, 2):
        batch = Batch()
        for place in (at, at + 1):
            batch.add(place % 200, place, 0, wants_logits=True)
        for depth in (1, 1, 2, 2):
            batch.add_leaf(7, at + depth, 0)
        context.decode(batch)
    assert same(context.row(1), fresh(tuple(place % 200 for place in range(240))))


@pytest.mark.parametrize(
    "architecture, n_leaves",
    [("llama", N_LEAVES), ("mamba", 0), ("lfm2", 0), ("qwen35", 0), ("gemma3", 0)],
)
def test_only_attention_caches_have_leaves(architecture: str, n_leaves: int) -> None:
    assert context_of(architecture).n_leaves == n_leaves


def test_a_cache_with_an_indexer_has_no_leaves(tmp_path: Path) -> None:
    extra = {"llama.attention.indexer.head_count": 4}
    native_log = library.start()
    native_log.begin()
    model = LlamaModel(str(write_llama(tmp_path / "m.gguf", extra=extra)), native_log)
    assert not model.can_branch
    assert model_of("llama").can_branch
    model.close()


def test_a_cache_per_slot_has_no_leaves() -> None:
    context = LlamaContext(
        model_of("llama"),
        n_ctx=256,
        n_slots=N_SLOTS,
        n_batch=64,
        n_outputs=64,
        n_leaves=N_LEAVES,
        cache_per_slot=True,
    )
    assert context.n_leaves == 0
    context.close()


def test_sequences_are_limited_by_outputs() -> None:
    context = LlamaContext(
        model_of("llama"),
        n_ctx=256,
        n_slots=N_SLOTS,
        n_batch=64,
        n_outputs=6,
        n_leaves=N_LEAVES,
    )
    assert context.n_leaves == 2
    context.close()
