"""Prompts are checked and fitted before native code gets them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import EngineRequest, Image, SamplingParams
from specd.engine.media import Media, Part, Prompt
from specd.engine.prompt_tokens import fit_prompt, n_keep_of, prompt
from specd.errors import ContextLengthExceeded, InvalidRequest
from tests.fakes.backend import BOS, N_VOCAB, FakeVocabulary

VOCABULARY = FakeVocabulary()


def request(*prompt: str | int, **fields: object) -> EngineRequest:
    return EngineRequest(prompt=prompt, sampling=SamplingParams(), **fields)  # type: ignore[arg-type]


IMAGE = Media(token=-7, n_tokens=3, n_positions=3)


def build(*pieces: str | int | Image, add_bos: bool = True) -> Prompt:
    return prompt(pieces, VOCABULARY, lambda data: [40, IMAGE, 41], add_bos=add_bos)


def test_bos_is_added_before_the_first_piece_only() -> None:
    assert build("A", "B").tokens == [BOS, 2, 3]
    assert build(5, "B").tokens == [5, 3]
    assert build(Image(b""), "B").tokens == [BOS, 40, -7, -7, -7, 41, 3]
    assert build(Image(b""), add_bos=False).tokens == [40, -7, -7, -7, 41]


def test_an_image_keeps_its_place_among_the_pieces() -> None:
    shown = build("A", Image(b"1"), "B", Image(b"2"))
    assert shown.tokens == [BOS, 2, 40, -7, -7, -7, 41, 3, 40, -7, -7, -7, 41]
    assert list(shown.media) == [3, 9]


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**40])
def test_an_unknown_token_id_is_refused(token: int) -> None:
    with pytest.raises(InvalidRequest, match="out of range"):
        build("A", token)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        build("", add_bos=False)


def test_a_prompt_with_images_is_not_truncated() -> None:
    parts: list[Part] = [*range(2, 50), IMAGE, *range(2, 50)]
    shown = prompt([Image(b"")], VOCABULARY, lambda _: parts, add_bos=False)
    with pytest.raises(ContextLengthExceeded):
        fit_prompt(shown, request(), 80, 4)


@pytest.mark.contract("shift.prompt")
@given(st.integers(1, 3000), st.integers(8, 500), st.integers(0, 40))
def test_a_truncated_prompt_fits_and_keeps_its_start_and_end(
    n_prompt: int, n_ctx: int, n_keep: int
) -> None:
    kept = n_keep_of(request(n_keep=n_keep), n_ctx, begins_with_bos=True)
    tokens = list(range(n_prompt))
    fitted = fit_prompt(Prompt(tokens), request(), n_ctx, kept).tokens
    assert 0 < len(fitted) < max(n_ctx, 2)
    assert fitted[:kept] == tokens[:kept]
    assert fitted[-1] == tokens[-1]
    if n_prompt < n_ctx:
        assert fitted == tokens


@pytest.mark.contract("shift.prompt", "truncate.off")
@pytest.mark.parametrize("fields", [{"truncate": False}, {"shift": False}])
def test_a_long_prompt_is_refused_with_both_lengths(fields: dict[str, bool]) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        fit_prompt(Prompt(list(range(100))), request(**fields), 100, 4)
    assert (caught.value.n_prompt, caught.value.n_ctx) == (100, 100)
