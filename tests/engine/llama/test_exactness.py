"""The self-check's findings on real kernels, and the guarantees of SPECD_EXACT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specd.core import Done, Exactness, NoPair, SpeculationMode
from specd.engine.slot import common_prefix
from specd.ipc.messages import Finished, Tokens
from tests.engine.llama.conftest import (
    DRAFTER,
    TARGET,
    Engine,
    Recorder,
    assert_near_tie,
    load,
    request,
)
from tests.gguf_files import write_llama

#: Settings under which rows depend on others in one cache, and of the first two on x86 with AVX
#: also on the width of their pass.
UNEVEN: dict[str, dict[str, Any]] = {
    "f32": {"kv_cache_type": "f32", "flash_attention": False},
    "f16": {"kv_cache_type": "f16", "flash_attention": False},
    "q8_0": {"kv_cache_type": "q8_0", "flash_attention": True},
}
LONG = "def read_file(path):\n    return open(path).read()\n\n\n" * 8
PROMPTS = ("def walk(", "class Node:\n    def ", "import os\n\ndef main(", LONG + "def close(")
FIXED = {"n_draft_max": 4, "mode": SpeculationMode.FIXED}
PLAIN = {"n_draft_max": 0}


def together(engine: Engine, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return the texts of requests that run at the same time, as far as slots allow."""
    engine.said.clear()
    for number, (prompt, fields) in enumerate(asked):
        engine.loop.submit(number, request(prompt, **fields))
    while engine.loop.is_busy:
        engine.loop.step()
    ends = [m.event for m in engine.said if isinstance(m, Finished)]
    assert len(ends) == len(asked)
    assert all(isinstance(end, Done) for end in ends), ends
    return [
        "".join(
            m.token.text for m in engine.said if isinstance(m, Tokens) and m.request_id == number
        )
        for number in range(len(asked))
    ]


@pytest.mark.parametrize("name", UNEVEN)
def test_with_exact_a_seed_gives_one_text_under_any_load(
    name: str,
) -> None:
    engine = load(TARGET, DRAFTER, n_slots=4, n_batch=128, exact=True, **UNEVEN[name])
    facts = engine.loaded.facts.exact
    assert facts is not None
    assert (facts.speculation, facts.parallel, facts.prompt_cache) == (True, True, True)
    asked = [
        (prompt, {"seed": seed, "n_predict": 24, **drafting})
        for seed, prompt in enumerate(PROMPTS)
        for drafting in (PLAIN, FIXED)
    ]
    alone = [engine.answer(prompt, **fields)[0] for prompt, fields in asked]
    assert alone[0::2] == alone[1::2]
    assert together(engine, asked) == alone
    assert together(engine, asked[::-1]) == alone[::-1]


@pytest.mark.parametrize("name", UNEVEN)
def test_with_exact_rows_are_equal_bit_by_bit(name: str) -> None:
    """Compare a prompt read in a new engine with one reused from a cache with other texts."""
    settings = {"n_slots": 2, "n_batch": 64, "exact": True, **UNEVEN[name]}
    fresh, used = load(TARGET, DRAFTER, **settings), load(TARGET, DRAFTER, **settings)
    prompt, more = LONG + "def close(", LONG + "def close(self):\n    return self"
    draw = {"n_predict": 12, "want_context": True}
    used.answer(prompt, **draw)
    together(used, [(prompt, {"seed": 1, **FIXED}), ("class Node(", {"seed": 2})])
    for text in (prompt, more):
        expected, found = record(fresh), record(used)
        end = fresh.answer(text, **draw, **PLAIN)[1]
        again = used.answer(text, **draw, **FIXED)[1]
        assert again.context == end.context
        rows = {position: row for (_, position), row in found.rows.items()}
        compared = 0
        for (_, position), row in expected.rows.items():
            assert np.array_equal(row, rows[position])
            compared += 1
        assert compared == end.usage.n_generated
        fresh.loop.rewind(fresh.loop.slots[0], 0)
        fresh.loop.rewind(fresh.loop.slots[1], 0)


def record(engine: Engine) -> Recorder:
    recorder = Recorder(engine.loaded.target)
    engine.loop.target = recorder
    return recorder


@pytest.mark.parametrize("name", UNEVEN)
def test_findings_agree_with_generated_text(name: str) -> None:
    """If speculation is not exact, rows of a few dozen answers may differ, and then a text."""
    engine = load(TARGET, DRAFTER, n_slots=2, **UNEVEN[name])
    found = engine.loaded.facts.exact
    assert isinstance(found, Exactness)
    assert (found.enforced, engine.loaded.exact) == ((), None)
    # Slots share one cache, and a sum is rounded by the order in which it is taken.
    assert not found.parallel
    for seed, prompt in enumerate(PROMPTS):
        draw = {"seed": seed, "n_predict": 30, "want_context": True}
        plain, drafted = record(engine), record(engine)
        engine.loop.target = plain
        expected = engine.answer(prompt, **draw, **PLAIN)[1].context
        engine.loop.target = drafted
        said = engine.answer(prompt, **draw, **FIXED)[1].context
        if found.speculation:
            assert said == expected
            assert same_rows(plain, drafted, len(expected))


def same_rows(plain: Recorder, drafted: Recorder, n_tokens: int) -> bool:
    rows = {position: row for (_, position), row in drafted.rows.items()}
    # The first is the prompt's, which the second answer found in the cache.
    compared = [(row, rows[at]) for (_, at), row in plain.rows.items() if at < n_tokens - 1][1:]
    return bool(compared) and all(np.array_equal(a, b) for a, b in compared)


def test_rounding_by_threads_over_a_long_cache_is_found(tmp_path: Path) -> None:
    """llama.cpp splits 512 cells of a pass of one row among its threads, and of no other pass."""
    path = write_llama(tmp_path / "t.gguf")
    flash: dict[str, Any] = {"kv_cache_type": "f16", "flash_attention": True}
    one, two = (load(path, n_threads=n, **flash).loaded.facts.exact for n in (1, 2))
    assert two is not None
    assert not two.speculation
    forced = load(path, n_threads=2, exact=True, **flash).loaded
    assert forced.exact is not None
    assert not forced.exact.drafts
    assert forced.facts.no_pair_reason == NoPair.NOT_EXACT
    assert one is not None


def test_the_self_check_leaves_no_buffers(tmp_path: Path) -> None:
    """The reported memory excludes the check's buffers, and the cache is empty after it."""
    path = write_llama(tmp_path / "t.gguf")
    loaded = load(path).loaded
    weights = path.stat().st_size
    assert loaded.facts.target.weights_bytes <= weights * 1.1 + (1 << 20)
    assert loaded.target.reusable(0, 100) == 0


@pytest.mark.parametrize("drafting", [PLAIN, FIXED], ids=["plain", "drafted"])
def test_without_exact_texts_differ_only_at_near_ties(
    drafting: dict[str, Any],
) -> None:
    """Four equal requests run at once, with an f32 cache and without flash attention."""
    engine = load(TARGET, DRAFTER, n_slots=4, **UNEVEN["f32"])
    draw = {"top_k": 0, "top_p": 1.0, "n_predict": 48, "want_context": True}
    for seed in range(4):
        for slot in engine.loop.slots:
            engine.loop.rewind(slot, 0)
        alone = record(engine)
        expected = engine.answer("def read_file(", seed=seed, **draw, **PLAIN)[1]
        engine.loop.target = engine.loaded.target
        for slot in engine.loop.slots:
            engine.loop.rewind(slot, 0)
        beside = record(engine)
        together(engine, [("def read_file(", {"seed": seed, **draw, **drafting})] * 4)
        engine.loop.target = engine.loaded.target
        for number, end in enumerate(m.event for m in engine.said if isinstance(m, Finished)):
            assert isinstance(end, Done), number
        rows = {position: row for (_, position), row in alone.rows.items()}
        # Each slot's own answer, in whatever order they ended.
        for slot in engine.loop.slots:
            said, plain = slot.tokens, list(expected.context)
            n_same = common_prefix(said, plain)
            if n_same < min(len(said), len(plain)):
                a, b = rows[n_same - 1], beside.rows[slot.id, n_same - 1]
                position = n_same - expected.usage.n_prompt
                assert_near_tie(a, b, plain[n_same], said[n_same], seed, position)
