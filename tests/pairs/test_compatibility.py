"""Check the rules of compatible vocabularies and their messages; fingerprints must agree."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.pairs.compatibility import may_differ
from specd.pairs.fingerprints import Fingerprint, fits
from specd.pairs.vocabulary import vocabulary_of
from specd.store.gguf import GgufHeader, Value
from tests.pairs.vocabulary_headers import (
    BYTE,
    CONTROL,
    CUT,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    changed,
    made,
    verdict,
    with_tokens,
)

TOKENS = tuple(f"t{i}" for i in range(300))
PLAIN = made(TOKENS)


# --------------------------------------------------------------------------------- each rule


def test_the_first_five_tokens_may_differ() -> None:
    assert verdict(PLAIN, with_tokens(made(TOKENS, [NORMAL] * 300), {4: "other"})) is None
    assert verdict(PLAIN, with_tokens(made(TOKENS, [NORMAL] * 300), {5: "other"})) == (
        "token 5 is “t5” in one and “other” in the other"
    )


def test_tokens_after_a_permitted_difference_are_compared() -> None:
    other = with_tokens(made(TOKENS, [NORMAL] * 300), {2: "one", 7: "two"})
    assert verdict(PLAIN, other) == "token 7 is “t7” in one and “two” in the other"


@pytest.mark.parametrize(
    "ours,theirs,may",
    [
        (CONTROL, CONTROL, True),
        (UNUSED, CONTROL, True),
        (UNKNOWN, UNUSED, True),
        (USER_DEFINED, CONTROL, True),
        (USER_DEFINED, USER_DEFINED, False),
        (NORMAL, CONTROL, False),
        (NORMAL, UNUSED, False),
        (BYTE, UNUSED, False),
        (NORMAL, NORMAL, False),
        (0, CONTROL, False),
    ],
)
def test_only_marks_and_fillers_may_differ(ours: int, theirs: int, *, may: bool) -> None:
    assert may_differ(ours, theirs) == may_differ(theirs, ours) == may
    a = made(TOKENS, [NORMAL] * 99 + [ours] + [NORMAL] * 200)
    b = with_tokens(made(TOKENS, [NORMAL] * 99 + [theirs] + [NORMAL] * 200), {99: "<mark>"})
    assert (verdict(a, b) is None) == may


def test_without_types_every_token_is_ordinary() -> None:
    marked = with_tokens(made(TOKENS, [NORMAL] * 99 + [CONTROL] * 201), {99: "<mark>"})
    assert verdict(PLAIN, marked) is not None


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"model": "llama"}, "the tokenizers are of different kinds (gpt2, llama)"),
        ({"pre": "qwen2"}, f"{CUT} (llama-bpe, qwen2)"),
        ({"pre": "llama3"}, None),
        ({"pre": "falcon3"}, None),
        (
            {"add_bos_token": False},
            "only one of the two begins every text with a token of its own",
        ),
        ({"bos_token_id": 7}, "the texts begin with different tokens (1, 7)"),
        ({"eos_token_id": 7}, None),
        ({"add_eos_token": True}, "only one of the two ends every text with a token of its own"),
        ({"tokens": ()}, "the drafter has no vocabulary"),
        ({"tokens": None}, "the drafter has no vocabulary"),
        ({"merges": ("c d", "a b")}, "the tokenizers join the same tokens in a different order"),
    ],
)
def test_each_rule_has_its_message(changes: dict[str, Value | None], said: str | None) -> None:
    found = verdict(PLAIN, changed(PLAIN, **changes))
    assert found == said or (found and said and found.startswith(said))


def test_a_target_without_a_vocabulary_is_reported() -> None:
    assert verdict(made(()), PLAIN) == "the model has no vocabulary"


def test_bos_and_eos_count_only_if_they_are_added() -> None:
    ends = changed(PLAIN, add_eos_token=True)
    assert verdict(ends, changed(ends, eos_token_id=9)) == (
        "the texts end with different tokens (2, 9)"
    )
    silent = changed(PLAIN, add_bos_token=False)
    assert verdict(silent, changed(silent, bos_token_id=9)) is None


def test_sentencepiece_ignores_the_pre_tokenizer() -> None:
    spm = changed(PLAIN, model="llama", pre=None)
    assert verdict(spm, changed(spm, pre="whatever")) is None


def test_a_long_token_is_shortened_in_the_message() -> None:
    said = verdict(PLAIN, made((*TOKENS[:299], "x" * 1000)))
    assert said is not None
    assert len(said) < 120
    for text, shown in (("x" * 40, "x" * 40), ("x" * 41, "x" * 39 + "…")):
        said = verdict(PLAIN, made((*TOKENS[:299], text)))
        assert said == f"token 299 is “t299” in one and “{shown}” in the other"


@pytest.mark.parametrize(
    "model,pre,ids,adds",
    [
        ("llama", "", (1, 2), (True, False)),
        ("gpt2", "llama3", (11, 11), (True, False)),
        ("gpt2", "qwen2", (11, 11), (False, False)),
        ("gemma4", "", (-1, -1), (True, False)),
        ("bert", "", (101, -1), (True, False)),
        ("t5", "", (-1, 1), (False, True)),
        ("rwkv", "", (-1, -1), (False, False)),
    ],
)
def test_missing_values_have_llama_cpps_defaults(
    model: str, pre: str, ids: tuple[int, int], adds: tuple[bool, bool]
) -> None:
    header = changed(made(TOKENS), model=model, pre=pre, bos_token_id=None, eos_token_id=None)
    outline = vocabulary_of(header).outline
    assert (outline.bos, outline.eos) == ids
    assert (outline.add_bos, outline.add_eos) == adds


# -------------------------------------------------------------------------------- properties

vocabularies = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from((NORMAL, CONTROL, USER_DEFINED, UNUSED))),
    min_size=1,
    max_size=12,
)


def header_of(vocabulary: Sequence[tuple[str, int]], n_before: int = 0) -> GgufHeader:
    tokens = [*(f"t{i}" for i in range(n_before)), *(text for text, _ in vocabulary)]
    return made(tokens, [*([NORMAL] * n_before), *(kind for _, kind in vocabulary)])


@given(vocabularies, vocabularies, st.sampled_from((0, 5, 120, 1020, 1024, 2040)))
def test_fingerprints_and_messages_agree_and_are_symmetric(
    ours: list[tuple[str, int]], theirs: list[tuple[str, int]], n_before: int
) -> None:
    verdict(header_of(ours, n_before), header_of(theirs, n_before))


@given(vocabularies, st.sampled_from((0, 5, 1020, 1100)), st.integers(0, 128))
@settings(max_examples=25)
def test_every_vocabulary_fits_itself_with_up_to_128_more_ids(
    vocabulary: list[tuple[str, int]], n_before: int, n_padding: int
) -> None:
    small = header_of(vocabulary, n_before)
    big = header_of([*vocabulary, *[("[PAD]", UNUSED)] * n_padding], n_before)
    assert verdict(small, small) is None
    assert verdict(big, small) is None
    assert fits(Fingerprint.of(small), Fingerprint.of(big)) is True
    assert (Fingerprint.of(small).name == Fingerprint.of(big).name) == (n_padding == 0)


@given(st.integers(5, 2999), st.integers(0, 128))
@settings(max_examples=25)
def test_one_changed_token_is_found_at_any_position(at: int, n_padding: int) -> None:
    tokens = [f"t{i}" for i in range(3000)]
    other = [*tokens[:at], "x", *tokens[at + 1 :], *(["[PAD]"] * n_padding)]
    assert fits(Fingerprint.of(made(tokens)), Fingerprint.of(made(other))) is False
