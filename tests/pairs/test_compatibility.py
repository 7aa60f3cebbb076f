"""Which vocabularies fit, and the sentence for those that do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import StoreError
from specd.pairs.compatibility import Compatibility, Vocabulary, difference, vocabulary_of
from specd.store.gguf import GgufHeader, read_header
from tests.gguf_files import MERGES, VOCABULARY, byte_vocabulary, write_llama
from tests.gguf_files import Vocabulary as WrittenVocabulary

PLAIN = Vocabulary(
    model="gpt2",
    pre="llama-bpe",
    tokens=tuple(f"t{i}" for i in range(300)),
    merges="same",
    bos=1,
    eos=2,
    add_bos=True,
    add_eos=False,
)


def verdict(tmp_path: Path, target: WrittenVocabulary, drafter: WrittenVocabulary) -> str | None:
    a = write_llama(tmp_path / "target.gguf", vocabulary=target)
    b = write_llama(tmp_path / "drafter.gguf", vocabulary=drafter, seed=1)
    return Compatibility().difference(a, b)


def test_equal_vocabularies_in_different_models_fit(tmp_path: Path) -> None:
    assert verdict(tmp_path, VOCABULARY, VOCABULARY) is None


def test_padding_of_128_ids_fits_and_of_129_does_not(tmp_path: Path) -> None:
    assert verdict(tmp_path, VOCABULARY.with_padding(128), VOCABULARY) is None
    assert verdict(tmp_path, VOCABULARY, VOCABULARY.with_padding(128)) is None
    said = verdict(tmp_path, VOCABULARY.with_padding(129), VOCABULARY)
    assert said == "the vocabularies have 400 and 271 tokens, more than 128 apart"


def test_a_token_that_differs_is_named(tmp_path: Path) -> None:
    said = verdict(tmp_path, VOCABULARY, VOCABULARY.with_token(100, "surprise"))
    assert said == f"token 100 is “{VOCABULARY.tokens[100]}” in one and “surprise” in the other"


def test_the_first_five_tokens_may_differ(tmp_path: Path) -> None:
    assert verdict(tmp_path, VOCABULARY, VOCABULARY.with_token(4, "other")) is None
    assert verdict(tmp_path, VOCABULARY, VOCABULARY.with_token(5, "other")) is not None


def test_shuffled_tokens_do_not_fit(tmp_path: Path) -> None:
    said = verdict(tmp_path, VOCABULARY, byte_vocabulary(shuffle_seed=3))
    assert said is not None
    assert said.startswith("token ")


def test_other_merges_of_the_same_tokens_do_not_fit(tmp_path: Path) -> None:
    backwards = dataclasses.replace(VOCABULARY, merges=tuple(reversed(MERGES)))
    said = verdict(tmp_path, VOCABULARY, backwards)
    assert said is not None
    assert "merges differ" in said


def test_another_pre_tokenizer_does_not_fit_unless_it_is_another_name_for_it(
    tmp_path: Path,
) -> None:
    said = verdict(tmp_path, VOCABULARY, byte_vocabulary(pre="qwen2"))
    assert said is not None
    assert "(llama-bpe, qwen2)" in said
    assert verdict(tmp_path, VOCABULARY, byte_vocabulary(pre="llama3")) is None


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"model": "llama"}, "different kinds"),
        ({"add_bos": False}, "begins every text"),
        ({"bos": 7}, "begin with different tokens (1, 7)"),
        ({"add_eos": True}, "ends every text"),
        ({"tokens": ()}, "the drafter carries no vocabulary"),
    ],
)
def test_each_rule_has_its_sentence(changes: dict[str, object], words: str) -> None:
    drafter = dataclasses.replace(PLAIN, **changes)  # type: ignore[arg-type]
    said = difference(PLAIN, drafter)
    assert said is not None
    assert words in said


def test_a_target_without_vocabulary_says_so() -> None:
    bare = dataclasses.replace(PLAIN, tokens=())
    assert difference(bare, PLAIN) == "the model carries no vocabulary"


def test_the_end_token_counts_only_where_it_is_added() -> None:
    other = dataclasses.replace(PLAIN, eos=9)
    assert difference(PLAIN, other) is None
    ends = dataclasses.replace(PLAIN, add_eos=True)
    said = difference(ends, dataclasses.replace(other, add_eos=True))
    assert said == "the texts end with different tokens (2, 9)"


def test_the_begin_token_counts_only_where_it_is_added() -> None:
    silent = dataclasses.replace(PLAIN, add_bos=False)
    assert difference(silent, dataclasses.replace(silent, bos=9)) is None


def test_a_long_token_is_cut_in_the_sentence() -> None:
    tokens = (*PLAIN.tokens[:299], "x" * 1000)
    said = difference(PLAIN, dataclasses.replace(PLAIN, tokens=tokens))
    assert said is not None
    assert len(said) < 120


@pytest.mark.parametrize(
    "model,pre,ids,adds",
    [
        ("llama", "", (1, 2), (True, False)),
        ("gpt2", "llama3", (11, 11), (True, False)),
        ("gpt2", "qwen2", (11, 11), (False, False)),
        ("bert", "", (101, -1), (True, False)),
        ("t5", "", (-1, 1), (False, True)),
        ("rwkv", "", (-1, -1), (False, False)),
    ],
)
def test_what_a_file_leaves_out_takes_llama_cpps_default(
    model: str, pre: str, ids: tuple[int, int], adds: tuple[bool, bool]
) -> None:
    values = {"tokenizer.ggml.model": model, "tokenizer.ggml.pre": pre}
    vocabulary = vocabulary_of(GgufHeader(Path("x"), values, ()))
    assert (vocabulary.bos, vocabulary.eos) == ids
    assert (vocabulary.add_bos, vocabulary.add_eos) == adds


def test_a_files_vocabulary_is_read_whole(tmp_path: Path) -> None:
    header = read_header(write_llama(tmp_path / "a.gguf"))
    vocabulary = vocabulary_of(header)
    assert vocabulary.tokens == VOCABULARY.tokens
    assert (vocabulary.bos, vocabulary.eos) == (VOCABULARY.bos, VOCABULARY.eos)
    assert (vocabulary.model, vocabulary.pre) == ("gpt2", "llama-bpe")


def test_verdicts_follow_the_files_contents(tmp_path: Path) -> None:
    compatibility = Compatibility()
    a = write_llama(tmp_path / "a.gguf")
    b = write_llama(tmp_path / "b.gguf", vocabulary=VOCABULARY.with_token(9, "x"))
    first = compatibility.difference(a, b)
    assert first is not None
    assert compatibility.difference(a, b) == first
    write_llama(b)
    assert compatibility.difference(a, b) is None


def test_a_damaged_file_is_a_store_error(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "a.gguf")
    with pytest.raises(StoreError):
        Compatibility().difference(path, tmp_path / "none.gguf")


@given(st.lists(st.text(max_size=4), min_size=1, max_size=200), st.integers(0, 128))
def test_a_vocabulary_fits_itself_padded_either_way(tokens: list[str], n_padding: int) -> None:
    small = dataclasses.replace(PLAIN, tokens=tuple(tokens))
    big = dataclasses.replace(small, tokens=small.tokens + ("[PAD]",) * n_padding)
    assert difference(small, big) is None
    assert difference(big, small) is None
    assert (small.fingerprint == big.fingerprint) == (n_padding == 0)
