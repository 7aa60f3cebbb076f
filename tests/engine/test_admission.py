"""Prompts checked and fitted before native code sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import EngineRequest, SamplingParams
from specd.engine.admission import fit, n_kept, prompt_tokens
from specd.errors import ContextLengthExceeded, InvalidRequest
from tests.fakes.backend import BOS, N_VOCAB, FakeVocabulary

VOCABULARY = FakeVocabulary()


def request(*prompt: str | int, **fields: object) -> EngineRequest:
    return EngineRequest(prompt=prompt, sampling=SamplingParams(), **fields)  # type: ignore[arg-type]


def test_bos_stands_before_the_first_piece_alone() -> None:
    assert prompt_tokens(request("A", "B"), VOCABULARY) == [BOS, 2, 3]
    assert prompt_tokens(request(5, "B"), VOCABULARY) == [5, 3]


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**40])
def test_an_id_that_the_model_does_not_have_is_refused(token: int) -> None:
    with pytest.raises(InvalidRequest, match="out of range"):
        prompt_tokens(request("A", token), VOCABULARY)


def test_a_prompt_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        prompt_tokens(request("", add_bos=False), VOCABULARY)


@given(st.integers(1, 3000), st.integers(8, 500), st.integers(0, 40))
def test_a_cut_prompt_fits_and_keeps_its_start_and_its_end(
    n_prompt: int, n_ctx: int, n_keep: int
) -> None:
    kept = n_kept(request(n_keep=n_keep), n_ctx, begins_with_bos=True)
    tokens = list(range(n_prompt))
    fitted = fit(tokens, request(), n_ctx, kept)
    assert 0 < len(fitted) < max(n_ctx, 2)
    assert fitted[:kept] == tokens[:kept]
    assert fitted[-1] == tokens[-1]
    if n_prompt < n_ctx:
        assert fitted == tokens


@pytest.mark.parametrize("fields", [{"truncate": False}, {"shift": False}])
def test_a_prompt_that_may_not_be_cut_is_refused_with_both_numbers(fields: dict[str, bool]) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        fit(list(range(100)), request(**fields), 100, 4)
    assert (caught.value.n_prompt, caught.value.n_ctx) == (100, 100)
