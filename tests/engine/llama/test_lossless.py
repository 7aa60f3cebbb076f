"""The promise: the text for a seed is the same with speculation on, off, at any length."""

from __future__ import annotations

import numpy as np
import pytest

from specd.core import SpeculationMode
from specd.engine.sampler import filter_candidates
from specd.engine.slot import common_prefix
from tests.engine.llama.conftest import DRAFTER, TARGET, Engine, Recorder, load, request

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
#: Two kernels may differ in the last bits of a logit; beyond this they would be wrong.
NEAR_TIE = 0.05


def test_fifty_prompts_say_the_same_with_and_without_speculation(invariant_demo: Engine) -> None:
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
    assert n_accepted > 500, "the promise is empty where nothing was drafted"


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize("repeat_penalty", [1.0, 1.15])
def test_temperature_and_penalties_keep_the_promise(
    invariant_demo: Engine, temperature: float, repeat_penalty: float
) -> None:
    settings = {"temperature": temperature, "repeat_penalty": repeat_penalty, "seed": 5}
    for prompt in PROMPTS[:6]:
        plain, _ = invariant_demo.answer(prompt, n_draft_max=0, **settings)
        assert invariant_demo.answer(prompt, **settings)[0] == plain
        fixed = {"n_draft_max": 5, "mode": SpeculationMode.FIXED}
        assert invariant_demo.answer(prompt, **fixed, **settings)[0] == plain


def test_elsewhere_the_first_difference_is_a_near_tie() -> None:
    """Default cache and attention: kernels differ by width, so a difference must be a tie."""
    engine = load(TARGET, DRAFTER)
    recorder = Recorder(engine.loaded.target)
    engine.loop._target = recorder
    for seed, prompt in enumerate(PROMPTS[:20]):
        plain = engine.answer(prompt, seed=seed, n_draft_max=0, want_context=True)[1].context
        plain_rows = dict(recorder.rows)
        fixed = {"n_draft_max": 4, "mode": SpeculationMode.FIXED}
        drafted = engine.answer(prompt, seed=seed, want_context=True, **fixed)[1].context
        n_same = common_prefix(list(plain), list(drafted))
        if n_same == max(len(plain), len(drafted)):
            continue
        # The token at n_same was drawn from the row of the one before it.
        a, b = plain_rows[n_same - 1], recorder.rows[n_same - 1]
        assert float(np.abs(a - b).max()) < NEAR_TIE
        ids, _ = filter_candidates(a, request(prompt, seed=seed).sampling)
        assert plain[n_same] in ids


def test_other_slots_do_not_change_an_answer(invariant_demo: Engine) -> None:
    crowd = load(TARGET, DRAFTER, n_slots=3, kv_cache_type="f32", flash_attention=False)
    for at, prompt in enumerate(PROMPTS[:6]):
        crowd.loop.submit(at, request(prompt, seed=at, n_draft_max=at % 4))
    while crowd.loop.busy:
        crowd.loop.step()
    for at, prompt in enumerate(PROMPTS[:6]):
        text = "".join(
            m.token.text
            for m in crowd.said
            if m.request_id == at and hasattr(m, "token")  # type: ignore[union-attr]
        )
        assert text == invariant_demo.answer(prompt, seed=at, n_draft_max=0)[0]


def test_a_seed_repeats_itself_and_another_differs(demo: Engine) -> None:
    first = demo.answer("def walk(", seed=0)[0]
    assert demo.answer("def walk(", seed=0)[0] == first
    assert demo.answer("def walk(", seed=1)[0] != first
