"""How far the caches of real models can be rewound, and that the rest is still right."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.engine.backend import Batch
from specd.engine.llama import library
from specd.engine.llama.cache import NativeMemory
from specd.engine.llama.context import LlamaContext
from specd.engine.llama.model import LlamaModel
from specd.engine.sampler import Row
from tests.gguf_architectures import write_gemma3, write_lfm2, write_qwen35
from tests.gguf_files import write_llama, write_mamba

#: Rows of one state differ by rounding between passes of different widths, rows of two by much.
ROUNDING, WRONG = 0.01, 0.5
N_SLOTS = 3
WINDOW = 32

WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": write_llama,
    "mamba": write_mamba,
    "lfm2": write_lfm2,
    "qwen35": write_qwen35,
    "gemma3": write_gemma3,
    "lfm2 with a window": lambda path: write_lfm2(path, sliding_window=WINDOW),
}
TOKEN = st.integers(0, 250)


@functools.cache
def model_of(architecture: str) -> LlamaModel:
    native_log = library.start()
    native_log.begin()
    with tempfile.TemporaryDirectory() as folder:
        return LlamaModel(str(WRITERS[architecture](Path(folder) / "m.gguf")), native_log)


@functools.cache
def context_of(
    architecture: str, *, n_rewind: int = 0, n_ahead: int = 0, n_batch: int = 64
) -> LlamaContext:
    return LlamaContext(
        model_of(architecture),
        n_ctx=1024,
        n_slots=N_SLOTS,
        n_batch=n_batch,
        n_outputs=n_batch,
        n_threads=1,
        flash_attention=False,
        kv_cache_type="f32",
        n_rewind=n_rewind,
        n_ahead=n_ahead,
    )


def decode(context: LlamaContext, groups: dict[int, tuple[int, Sequence[int]]]) -> dict[int, Row]:
    """Run one pass of (position, tokens) by slot, in the engine's order; return each last row."""
    batch = Batch()
    last = {}
    for slot, (position, tokens) in sorted(groups.items(), key=lambda g: (len(g[1][1]), g[0])):
        for at, token in enumerate(tokens):
            last[slot] = batch.add(token, position + at, slot, wants_logits=at == len(tokens) - 1)
    context.decode(batch)
    return {slot: context.row(index).copy() for slot, index in last.items()}


def next_row(context: LlamaContext, slot: int, n_past: int) -> Row:
    return decode(context, {slot: (n_past, [7])})[slot]


def fresh_row(architecture: str, history: Sequence[int]) -> Row:
    """Return the row after the history and one more token, computed in a new context."""
    context = context_of(architecture, n_rewind=2)
    assert context.rewind(0, 0) == 0
    for at in range(0, len(history), 60):
        decode(context, {0: (at, history[at : at + 60])})
    return next_row(context, 0, len(history))


STEP = st.dictionaries(
    st.integers(0, N_SLOTS - 1),
    st.tuples(st.lists(TOKEN, min_size=1, max_size=16), st.integers(0, 20), st.booleans()),
    min_size=1,
)


@pytest.mark.parametrize(
    "architecture, role",
    [
        *((architecture, {"n_rewind": 8}) for architecture in WRITERS),
        *((architecture, {"n_ahead": 16}) for architecture in WRITERS if architecture != "gemma3"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
@settings(max_examples=8, deadline=None)
@given(steps=st.lists(STEP, min_size=4, max_size=14))
def test_a_rewound_cache_equals_a_fresh_one(
    architecture: str, role: dict[str, int], steps: list[dict[int, tuple[list[int], int, bool]]]
) -> None:
    """Run passes, each followed by rewinds and holds, then compare with a new context."""
    context = context_of(architecture, **role)
    histories: list[list[int]] = [[] for _ in range(N_SLOTS)]
    for slot in range(N_SLOTS):
        assert context.rewind(slot, 0) == 0
    for step in steps:
        decode(context, {s: (len(histories[s]), tokens) for s, (tokens, _, _) in step.items()})
        for slot, (tokens, n_back, checkpoint) in step.items():
            histories[slot] += tokens
            asked = max(len(histories[slot]) - n_back, 0)
            promised = context.reusable(slot, asked)
            kept = context.rewind(slot, asked)
            assert kept == promised <= asked
            if context.rewind_limit is None or n_back <= min(context.rewind_limit, len(tokens) - 1):
                window = context_window(architecture, role)
                assert kept == asked or 0 < window < len(histories[slot])
            del histories[slot][kept:]
            if checkpoint:
                context.checkpoint(slot)
    for slot, history in enumerate(histories):
        assert context.reusable(slot, len(history)) == len(history)
        right = fresh_row(architecture, history)
        assert np.abs(next_row(context, slot, len(history)) - right).max() < ROUNDING


def context_window(architecture: str, role: dict[str, int]) -> int:
    return WINDOW if architecture == "gemma3" and "n_rewind" in role else 0


@pytest.mark.parametrize("architecture", ["mamba", "lfm2", "qwen35"])
def test_a_recurrent_drafter_rewinds_to_its_checkpoint(architecture: str) -> None:
    context = context_of(architecture, n_ahead=16)
    read, guessed = list(range(20)), [31, 32, 33]
    context.rewind(0, 0)
    decode(context, {0: (0, read)})
    context.checkpoint(0)
    for at, token in enumerate(guessed):
        decode(context, {0: (20 + at, [token])})
    assert context.rewind(0, 22) == 20
    difference = np.abs(next_row(context, 0, 20) - fresh_row(architecture, read))
    assert difference.max() < ROUNDING
    # That token was read after the held state, so no state is held any more.
    assert context.rewind(0, 20) == 0


@pytest.mark.parametrize("architecture", ["lfm2", "qwen35"])
def test_llama_cpp_accepts_rewinds_beyond_its_snapshots(architecture: str) -> None:
    """The engine's limits prevent this; if the test fails, llama.cpp now refuses such rewinds."""
    context = context_of(architecture, n_rewind=3)
    memory = NativeMemory(llama_cpp.llama_get_memory(context.handle))
    read = list(range(30))
    context.rewind(0, 0)
    decode(context, {0: (0, read[:29])})
    decode(context, {0: (29, read[29:])})
    assert context.reusable(0, 28) == 0
    assert memory.remove(0, 28)
    difference = np.abs(next_row(context, 0, 28) - fresh_row(architecture, read[:28]))
    assert difference.max() > WRONG


def test_a_state_is_rewound_once_before_the_next_pass() -> None:
    context = context_of("lfm2", n_rewind=3)
    for slot in range(2):
        context.rewind(slot, 0)
    decode(context, {0: (0, range(10)), 1: (0, range(10))})
    assert [context.reusable(0, n) for n in (10, 9, 7, 6)] == [10, 9, 7, 0]
    assert context.rewind(0, 9) == 9
    assert context.reusable(0, 8) == 0
    decode(context, {0: (9, [1, 2])})
    assert context.reusable(1, 9) == 0
    assert context.reusable(1, 10) == 10
    assert [context.reusable(0, n) for n in (11, 10, 9)] == [11, 10, 0], "its pass had two rows"


def test_a_window_is_rewound_only_while_it_is_whole() -> None:
    context = context_of("gemma3", n_rewind=8)
    memory = NativeMemory(llama_cpp.llama_get_memory(context.handle))
    read = [at * 37 % 250 for at in range(600)]

    def read_it() -> None:
        context.rewind(0, 0)
        for at in range(0, len(read), 60):
            decode(context, {0: (at, read[at : at + 60])})

    read_it()
    first = memory.begin(0)
    assert 0 < first < len(read) - WINDOW, "old cells have gone, some beyond the window are left"
    shortest = first + WINDOW - 1
    assert context.reusable(0, shortest - 1) == 0
    assert context.rewind(0, shortest) == shortest
    right = fresh_row("gemma3", read[:shortest])
    assert np.abs(next_row(context_of("gemma3", n_rewind=8), 0, shortest) - right).max() < ROUNDING
    read_it()
    assert memory.remove(0, shortest - 1)
    right = fresh_row("gemma3", read[: shortest - 1])
    assert np.abs(next_row(context, 0, shortest - 1) - right).max() > ROUNDING


def test_an_exhausted_window_is_read_again() -> None:
    context = context_of("gemma3", n_rewind=8)
    read = [at * 31 % 250 for at in range(600)]
    context.rewind(0, 0)
    for at in range(0, len(read), 60):
        decode(context, {0: (at, read[at : at + 60])})
    assert context.rewind(0, 100) == 0
    assert context.reusable(0, 600) == 0


@pytest.mark.parametrize(
    "architecture, n_rewind, limit",
    [("llama", 8, None), ("gemma3", 8, None), ("mamba", 8, 0), ("lfm2", 8, 8), ("lfm2", 0, 0)],
)
def test_rewind_limits_of_each_cache(architecture: str, n_rewind: int, limit: int | None) -> None:
    context = context_of(architecture, n_rewind=n_rewind)
    assert context.rewind_limit == limit
    assert context.has_equal_splits == (limit is not None)


def test_large_states_have_fewer_snapshots() -> None:
    """The delta net's state is half as large as its tiny file's weights."""
    assert context_of("qwen35", n_rewind=16).rewind_limit == 3
    assert context_of("qwen35", n_rewind=2).rewind_limit == 2


def test_a_short_batch_limits_snapshots() -> None:
    """llama.cpp would end the process over one that its snapshots do not fit in."""
    context = context_of("lfm2", n_rewind=16, n_batch=8)
    assert context.rewind_limit == 6
    decode(context, {0: (0, range(8))})
    assert context.rewind(0, 2) == 2
