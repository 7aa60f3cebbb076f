"""Lossless: the text for a seed is the same with speculation on, off, at any length."""

from __future__ import annotations

import pytest

from specd.core import Done, SpeculationMode
from specd.engine.slot import common_prefix
from specd.ipc.messages import Finished
from tests.engine.llama.conftest import (
    DRAFTER,
    TARGET,
    Engine,
    Recorder,
    assert_near_tie,
    load,
    request,
)

PROMPTS = [
    f"{opening}{name}("
    for opening in ("def ", "class ", "import os\n\ndef ", "    def ", "async def ")
    for name in (
        "binary_search",
        "read_file",
        "parse_args",
        "Node",
        "to_json",
        "walk",
        "main",
        "test_equal",
        "close",
        "get_default",
    )
]


def test_fifty_prompts_give_the_same_text_with_and_without_speculation(
    invariant_demo: Engine,
) -> None:
    n_accepted = 0
    for seed, prompt in enumerate(PROMPTS):
        plain, _ = invariant_demo.answer(prompt, seed=seed, n_draft_max=0)
        # A fixed length drafts however little it pays on this machine.
        drafted, done = invariant_demo.answer(
            prompt, seed=seed, n_draft_max=1 + seed % 8, mode=SpeculationMode.FIXED
        )
        assert drafted == plain
        n_accepted += done.speculation.draft_n_accepted
    assert len(PROMPTS) == 50
    assert n_accepted > 500, "the test proves nothing unless tokens were drafted"


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize("repeat_penalty", [1.0, 1.15])
def test_speculation_is_lossless_with_temperature_and_penalties(
    invariant_demo: Engine, temperature: float, repeat_penalty: float
) -> None:
    settings = {"temperature": temperature, "repeat_penalty": repeat_penalty, "seed": 5}
    for prompt in PROMPTS[:6]:
        plain, _ = invariant_demo.answer(prompt, n_draft_max=0, **settings)
        assert invariant_demo.answer(prompt, **settings)[0] == plain
        fixed = {"n_draft_max": 5, "mode": SpeculationMode.FIXED}
        assert invariant_demo.answer(prompt, **fixed, **settings)[0] == plain


def test_with_uneven_kernels_the_first_difference_is_a_near_tie() -> None:
    """Kernels that differ by width: where texts part, the rows explain it to the last bit.

    No filters, so that a token can win by its score alone: the gap between the two winners is at
    most what the rows differ by, on either side.
    """
    engine = load(TARGET, DRAFTER, flash_attention=False)
    recorder = Recorder(engine.loaded.target)
    engine.loop.target = recorder  # the rows are seen nowhere else
    fixed = {"n_draft_max": 4, "mode": SpeculationMode.FIXED}
    for seed, prompt in enumerate(PROMPTS[:30]):
        draw = {"seed": seed, "top_k": 0, "top_p": 1.0, "want_context": True}
        plain_end = engine.answer(prompt, n_draft_max=0, **draw)[1]
        plain_rows = dict(recorder.rows)
        drafted_end = engine.answer(prompt, **fixed, **draw)[1]
        plain, drafted = list(plain_end.context), list(drafted_end.context)
        n_same = common_prefix(plain, drafted)
        if n_same < min(len(plain), len(drafted)):
            a, b = plain_rows[0, n_same - 1], recorder.rows[0, n_same - 1]
            position = n_same - plain_end.usage.n_prompt
            assert_near_tie(a, b, plain[n_same], drafted[n_same], seed, position)


def test_beside_other_slots_the_first_difference_is_a_near_tie() -> None:
    """Slots share one cache, so the order in which attention sums a slot's cells may change."""
    crowd, alone = load(TARGET, DRAFTER, n_slots=3), load(TARGET)
    together, by_itself = Recorder(crowd.loaded.target), Recorder(alone.loaded.target)
    crowd.loop.target, alone.loop.target = together, by_itself
    draw = {"top_k": 0, "top_p": 1.0, "want_context": True}
    for slot, prompt in enumerate(PROMPTS[:3]):
        crowd.loop.submit(slot, request(prompt, seed=slot, n_draft_max=slot * 2, **draw))
    while crowd.loop.is_busy:
        crowd.loop.step()
    ends = {m.request_id: m.event for m in crowd.said if isinstance(m, Finished)}
    for slot, prompt in enumerate(PROMPTS[:3]):
        end = ends[slot]
        assert isinstance(end, Done)
        expected = alone.answer(prompt, seed=slot, **draw)[1]
        n_same = common_prefix(list(end.context), list(expected.context))
        if n_same < min(len(end.context), len(expected.context)):
            a, b = by_itself.rows[0, n_same - 1], together.rows[slot, n_same - 1]
            x, y = expected.context[n_same], end.context[n_same]
            assert_near_tie(a, b, x, y, slot, n_same - expected.usage.n_prompt)


@pytest.mark.contract("options.seed")
def test_a_seed_repeats_itself_and_another_differs(demo: Engine) -> None:
    first = demo.answer("def walk(", seed=0)[0]
    assert demo.answer("def walk(", seed=0)[0] == first
    assert demo.answer("def walk(", seed=1)[0] != first
