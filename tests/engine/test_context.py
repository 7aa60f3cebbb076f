"""A request with a smaller context is answered as if the model were loaded with it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import Done, Failed, FailureKind, Image, SpeculationMode, StopReason
from tests.engine.test_loop import Engine, answer
from tests.fakes.projector import FakeProjector
from tests.fast import computes_long

#: Tokens that a slot holds in the engines whose requests ask for less.
LOADED = 256

contexts = st.integers(6, 80)


@settings(max_examples=80, deadline=None)
@given(
    n_ctx=contexts,
    n_prompt=st.integers(1, 120),
    n_predict=st.sampled_from([0, 3, 40, 150]),
    n_keep=st.sampled_from([-1, 0, 4, 30]),
    seed=st.integers(0, 2**64 - 1),
    agreement=st.sampled_from([None, 0.5, 1.0]),
    n_draft=st.integers(0, 16),
    mode=st.sampled_from(SpeculationMode),
    can_shift=st.booleans(),
    rules=st.sampled_from([(True, True), (True, False), (False, True)]),
)
def test_a_requested_context_equals_a_loaded_one(
    *,
    n_ctx: int,
    n_prompt: int,
    n_predict: int,
    n_keep: int,
    seed: int,
    agreement: float | None,
    n_draft: int,
    mode: SpeculationMode,
    can_shift: bool,
    rules: tuple[bool, bool],
) -> None:
    truncate, shift = rules
    request: dict[str, Any] = {
        "prompt": (("QWERTYUIOPLKJH" * 9)[:n_prompt],),
        "n_predict": n_predict,
        "n_keep": n_keep,
        "seed": seed,
        "want_context": True,
        "truncate": truncate,
        "shift": shift,
    }
    small = Engine(agreement=None, n_ctx=n_ctx, can_shift=can_shift, eog_bias=-6)
    small.submit(1, n_draft_max=0, **request)
    small.run()
    large = Engine(agreement=agreement, n_ctx=LOADED, can_shift=can_shift, eog_bias=-6)
    large.submit(1, n_ctx=n_ctx, n_draft_max=n_draft, mode=mode, **request)
    large.run()
    assert large.text(1) == small.text(1)
    expected, said = small.end(1), large.end(1)
    if isinstance(expected, Failed):
        assert said == expected
    else:
        assert isinstance(said, Done)
        assert (said.reason, said.context) == (expected.reason, expected.context)
        assert said.usage.n_prompt == expected.usage.n_prompt
        assert said.usage.n_generated == expected.usage.n_generated
    assert len(large.target.cells[0]) <= n_ctx


@computes_long
@settings(max_examples=40, deadline=None)
@given(n_ctx=contexts, seed=st.integers(0, 2**64 - 1), n_draft=st.sampled_from([0, None, 5]))
def test_tokens_of_a_longer_request_do_not_change_the_answer(
    n_ctx: int, seed: int, n_draft: int | None
) -> None:
    prompt = ("QWERTYUIOP" * 5,)
    small = Engine(agreement=None, n_ctx=n_ctx, eog_bias=-50)
    text, _ = answer(small, prompt=prompt, seed=seed, n_predict=90)
    large = Engine(n_ctx=LOADED, eog_bias=-50)
    large.submit(1, prompt=prompt, seed=seed, n_predict=90)
    large.run()
    large.submit(2, prompt=prompt, seed=seed, n_predict=90, n_ctx=n_ctx, n_draft_max=n_draft)
    large.run()
    assert large.text(2) == text
    usage = large.done(2).usage
    assert usage.n_cached < n_ctx
    if usage.n_prompt == 51:
        assert usage.n_cached == 50, "a prompt that was not cut is found in the cache"


def test_the_next_request_gets_the_whole_context_of_its_slot() -> None:
    engine = Engine(n_ctx=64, eog_bias=-50)
    for request_id, n_ctx in enumerate([16, 0, 16, 64, 1000]):
        engine.submit(request_id, n_ctx=n_ctx, shift=False, n_predict=-1)
        engine.run()
        usage = engine.done(request_id).usage
        expected = 17 if n_ctx == 16 else 65
        assert usage.n_prompt + usage.n_generated == expected
        assert engine.done(request_id).reason is StopReason.LENGTH


def test_slots_with_different_contexts_share_passes() -> None:
    engine = Engine(n_slots=3, n_ctx=128, n_batch=80, eog_bias=-50)
    lengths = (16, 0, 40)
    for request_id, n_ctx in enumerate(lengths):
        engine.submit(request_id, n_ctx=n_ctx, seed=request_id, n_predict=100)
    engine.run()
    for request_id, n_ctx in enumerate(lengths):
        alone = Engine(agreement=None, n_ctx=n_ctx or 128, eog_bias=-50)
        text, _ = answer(alone, seed=request_id, n_predict=100)
        assert engine.text(request_id) == text


@pytest.mark.contract("truncate.off")
def test_a_refusal_names_the_requested_context() -> None:
    engine = Engine(n_ctx=256)
    engine.submit(1, prompt=("A" * 40,), truncate=False, n_ctx=32)
    failed = engine.end(1)
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.n_prompt, failed.n_ctx) == (FailureKind.CONTEXT_LENGTH, 41, 32)


def test_an_image_is_scaled_to_the_requested_context() -> None:
    """The image gets half of the smaller of the slot and the request's context."""
    engine = Engine(n_ctx=128, projector=FakeProjector())
    for request_id, n_ctx, n_expected in ((1, 32, 16), (2, 0, 50), (3, 32, 16), (4, 128, 50)):
        prompt = ("AB", Image(b"50 cat"), "C")
        engine.submit(request_id, prompt=prompt, n_ctx=n_ctx, n_predict=2)
        engine.run()
        usage = engine.done(request_id).usage
        assert usage.n_prompt == len("AB") + 1 + n_expected + 2 + len("C")
        # The same picture of another size is another prefix.
        assert usage.n_cached <= 4
