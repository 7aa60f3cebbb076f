"""Hybrid and recurrent models: lossless speculation, and caches that are reused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specd.core import Done, NoPair, SpeculationMode
from specd.engine.sampler import Row
from specd.engine.slot import common_prefix
from specd.ipc.messages import Finished
from tests.engine.llama.conftest import Recorder, assert_near_tie, load, request
from tests.gguf_architectures import write_lfm2, write_qwen35
from tests.gguf_files import write_llama, write_mamba

#: Rows do not depend on other rows of their pass, at any width: 8-bit weights, all else in full.
INVARIANT: dict[str, Any] = {"kv_cache_type": "f32", "flash_attention": False, "n_batch": 64}
HYBRIDS = ("lfm2", "qwen35")
FIXED = SpeculationMode.FIXED

WRITERS: dict[str, Callable[[Path], Path]] = {
    "lfm2": lambda path: write_lfm2(path, quantized=True),
    "qwen35": lambda path: write_qwen35(path, quantized=True),
    "lfm2 of its own mind": lambda path: write_lfm2(path, quantized=True, noise=0.1),
    "qwen35 of its own mind": lambda path: write_qwen35(path, quantized=True, noise=0.1),
    "lfm2 in full": write_lfm2,
    "qwen35 in full": write_qwen35,
    "mamba": write_mamba,
    "llama": write_llama,
}


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("hybrids")
    return functools.cache(lambda kind: WRITERS[kind](folder / f"{kind}.gguf"))


@pytest.mark.parametrize(
    "target, drafter",
    [
        *((hybrid, hybrid) for hybrid in HYBRIDS),
        *((hybrid, f"{hybrid} of its own mind") for hybrid in HYBRIDS),
        *((hybrid, "llama") for hybrid in HYBRIDS),
        ("lfm2", "mamba"),
        ("llama", "lfm2"),
    ],
)
def test_the_text_is_the_same_with_and_without_speculation(
    file: Callable[[str], Path], target: str, drafter: str
) -> None:
    engine = load(file(target), file(drafter), **INVARIANT)
    n_drafted = n_accepted = 0
    for seed in range(8):
        prompt = f"the {seed} thing in another"
        plain, _ = engine.answer(prompt, seed=seed, n_draft_max=0)
        drafted, done = engine.answer(prompt, seed=seed, n_draft_max=1 + seed, mode=FIXED)
        assert drafted == plain
        n_drafted += done.speculation.draft_n
        n_accepted += done.speculation.draft_n_accepted
    assert n_drafted > 300
    if target == drafter:
        assert n_accepted == n_drafted, "a drafter at a wrong position would disagree with itself"
    elif target in drafter:
        assert 0 < n_accepted < n_drafted


@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_shared_passes_differ_only_at_near_ties(file: Callable[[str], Path], hybrid: str) -> None:
    """Drafts of unequal lengths, a plain slot among them, requests that come and go."""
    target, drafter = file(f"{hybrid} in full"), file(f"{hybrid} of its own mind")
    settings: dict[str, Any] = {"kv_cache_type": "f32", "flash_attention": False}
    crowd, alone = load(target, drafter, n_slots=3, **settings), load(target, **settings)
    together, by_itself = Recorder(crowd.loaded.target), Recorder(alone.loaded.target)
    crowd.loop.target, alone.loop.target = together, by_itself
    draw = {"top_k": 0, "top_p": 1.0, "want_context": True}
    prompts = [f"a {'very ' * n}long thing {n}" for n in range(6)]
    for seed, prompt in enumerate(prompts):
        fields = {"n_draft_max": 2 * (seed % 3), "n_predict": 20 + 7 * seed, "mode": FIXED}
        crowd.loop.submit(seed, request(prompt, seed=seed, **fields, **draw))
    rows: dict[int, dict[int, Row]] = {}
    while crowd.loop.is_busy:
        crowd.loop.step()
        for slot in crowd.loop.slots:
            # Slots are used again: keep the rows by request.
            rows.setdefault(slot.request_id, {}).update(
                {at: row for (owner, at), row in together.rows.items() if owner == slot.id}
            )
    ends = {m.request_id: m.event for m in crowd.said if isinstance(m, Finished)}
    for seed, prompt in enumerate(prompts):
        end = ends[seed]
        assert isinstance(end, Done)
        expected = alone.answer(prompt, seed=seed, n_predict=20 + 7 * seed, **draw)[1]
        n_same = common_prefix(list(end.context), list(expected.context))
        if n_same < min(len(end.context), len(expected.context)):
            a, b = by_itself.rows[0, n_same - 1], rows[seed][n_same - 1]
            x, y = expected.context[n_same], end.context[n_same]
            assert_near_tie(a, b, x, y, seed, n_same - expected.usage.n_prompt)


@pytest.mark.parametrize("kind", [*HYBRIDS, "mamba"])
def test_a_recurrent_cache_is_reused_only_at_its_end(
    file: Callable[[str], Path], kind: str
) -> None:
    engine, other = load(file(kind), **INVARIANT), load(file(kind), **INVARIANT)

    def fresh(prompt: tuple[int, ...]) -> tuple[int, ...]:
        other.loop.rewind(other.loop.slots[0], 0)
        return other.answer(prompt, seed=4, want_context=True)[1].context

    first = engine.answer("the beginning", seed=4, want_context=True)[1].context
    longer = (*first, 70, 71, 72)
    turn = engine.answer(longer, seed=4, want_context=True)[1]
    assert turn.usage.n_cached == len(first) - 1
    assert turn.context == fresh(longer)
    changed = (*longer[:-2], 80, 81)
    turn = engine.answer(changed, seed=4, want_context=True)[1]
    assert turn.usage.n_cached == 0
    assert turn.context == fresh(changed)


def test_a_model_that_cannot_shift_rereads_its_context(
    file: Callable[[str], Path],
) -> None:
    engine = load(file("qwen35"), file("qwen35"), n_ctx=256, **INVARIANT)
    assert not engine.loaded.target.can_shift
    plain = engine.answer("once", n_predict=600, seed=2, n_draft_max=0)
    drafted = engine.answer("once", n_predict=600, seed=2, n_draft_max=3, mode=FIXED)
    assert plain[1].usage.n_generated == drafted[1].usage.n_generated == 600
    assert drafted[0] == plain[0]


@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_snapshots_are_limited_by_the_draft_length(
    file: Callable[[str], Path], hybrid: str
) -> None:
    engine = load(file(hybrid), file(hybrid), max_draft=2, **INVARIANT)
    assert engine.loaded.target.rewind_limit == 2
    plain, _ = engine.answer("the thing", seed=3, n_draft_max=0)
    drafted, done = engine.answer("the thing", seed=3, mode=FIXED)
    assert drafted == plain
    assert len(done.speculation.drafted_per_depth) == 2


def test_without_snapshots_the_answer_gives_the_reason(file: Callable[[str], Path]) -> None:
    engine = load(file("mamba"), file("llama"))
    stats = engine.answer("hello", n_predict=12)[1].speculation
    assert stats.reason == NoPair.CANNOT_REWIND
    assert stats.draft_n == 0
    assert "cannot remove a token" in stats.detail


@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_without_speculation_no_states_are_kept_to_take_tokens_back(
    file: Callable[[str], Path], hybrid: str
) -> None:
    """Also where the user wants exact texts and the build rounds by the width of a pass."""
    disabled: dict[str, Any] = {"no_pair_reason": NoPair.DISABLED_BY_USER, "n_threads": 2}
    engine = load(file(f"{hybrid} in full"), exact=True, n_slots=4, **disabled)
    drafting = load(file(f"{hybrid} in full"))
    assert engine.loaded.target.rewind_limit == 0
    assert drafting.loaded.target.rewind_limit != 0
