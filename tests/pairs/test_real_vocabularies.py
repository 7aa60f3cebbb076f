"""Check which of llama.cpp's own vocabularies fit each other."""

from __future__ import annotations

import pytest

from specd.pairs.fingerprints import Fingerprint
from tests.pairs.vocabulary_headers import (
    CUT,
    USER_DEFINED,
    T,
    changed,
    padded,
    real,
    verdict,
    with_tokens,
)

FAMILIES: tuple[tuple[str, str, str | None], ...] = (
    ("llama-bpe", "llama-bpe", None),
    # Phi 3 appended 64 tokens to Llama 2's vocabulary: TinyLlama can draft for it.
    ("phi-3", "llama-spm", None),
    ("llama-spm", "phi-3", None),
    # Qwen 3.5's file has the same tokens as Qwen 2's, but another pre-tokenizer.
    ("qwen35", "qwen2", f"{CUT} (qwen35, qwen2)"),
    ("llama-bpe", "qwen2", f"{CUT} (llama-bpe, qwen2)"),
    ("command-r", "llama-bpe", f"{CUT} (command-r, llama-bpe)"),
    ("deepseek-llm", "deepseek-coder", f"{CUT} (deepseek-llm, deepseek-coder)"),
    ("gpt-2", "starcoder", f"{CUT} (gpt-2, starcoder)"),
    ("refact", "starcoder", f"{CUT} (refact, starcoder)"),
    ("mpt", "gpt-neox", f"{CUT} (mpt, default)"),
    ("llama-bpe", "llama-spm", "the tokenizers are of different kinds (gpt2, llama)"),
    ("gemma-4", "llama-bpe", "the tokenizers are of different kinds (gemma4, gpt2)"),
    ("bert-bge", "nomic-bert-moe", "the tokenizers are of different kinds (bert, t5)"),
    (
        "baichuan",
        "llama-spm",
        "the vocabularies have 64000 and 32000 tokens, more than 128 apart",
    ),
    (
        "aquila",
        "gpt-neox",
        "the vocabularies have 100008 and 50432 tokens, more than 128 apart",
    ),
)


@pytest.mark.parametrize("target,drafter,said", FAMILIES)
def test_real_families(target: str, drafter: str, said: str | None) -> None:
    assert verdict(real(target), real(drafter)) == said


@pytest.mark.parametrize(
    "target,drafter,said",
    [
        ("refact", "starcoder", "token 19 is “!” in one and “<pr_status>” in the other"),
        ("mpt", "gpt-neox", None),
        ("qwen35", "qwen2", None),
    ],
)
def test_with_equal_pre_tokenizers_tokens_decide(
    target: str, drafter: str, said: str | None
) -> None:
    pre = real(target).text(T + "pre")
    assert verdict(real(target), changed(real(drafter), pre=pre)) == said


@pytest.mark.parametrize("n", [0, 1, 127, 128])
@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm"])
def test_a_real_vocabulary_with_up_to_128_more_ids_fits(name: str, n: int) -> None:
    assert verdict(padded(real(name), n), real(name)) is None


def test_a_real_vocabulary_with_129_more_ids_does_not_fit() -> None:
    assert verdict(padded(real("llama-bpe"), 129), real("llama-bpe")) == (
        "the vocabularies have 128385 and 128256 tokens, more than 128 apart"
    )


def test_one_token_of_128256_is_found() -> None:
    other = with_tokens(real("llama-bpe"), {100_000: "surprise"})
    token = real("llama-bpe").strings(T + "tokens")[100_000]
    assert verdict(real("llama-bpe"), other) == (
        f"token 100000 is “{token}” in one and “surprise” in the other"
    )


def test_merges_in_another_order_do_not_fit() -> None:
    merges = real("llama-bpe").strings(T + "merges")
    swapped = changed(real("llama-bpe"), merges=(*merges[1:], merges[0]))
    assert verdict(real("llama-bpe"), swapped) == (
        "the tokenizers join the same tokens in a different order (their merges differ)"
    )


def test_another_bos_does_not_fit() -> None:
    assert verdict(real("llama-bpe"), changed(real("llama-bpe"), bos_token_id=128_006)) == (
        "the texts begin with different tokens (128000, 128006)"
    )


def test_deepseeks_distills_have_llamas_vocabulary() -> None:
    """R1 replaces Llama 3's control tokens and reserved ids; `<think>` is no control token.

    The ids and types are those that its converter writes.
    """
    marks = {
        128_000: "<｜begin▁of▁sentence｜>",
        128_001: "<｜end▁of▁sentence｜>",
        128_011: "<｜User｜>",
        128_012: "<｜Assistant｜>",
        128_013: "<think>",
        128_014: "</think>",
        128_015: "<｜▁pad▁｜>",
    }
    types = {128_013: USER_DEFINED, 128_014: USER_DEFINED}
    distill = with_tokens(real("llama-bpe"), marks, types)
    assert verdict(distill, real("llama-bpe")) is None
    assert verdict(distill, changed(real("llama-bpe"), pre="llama3")) is None
    assert verdict(with_tokens(distill, {1000: "x"}), real("llama-bpe")) is not None


def test_a_fingerprint_is_the_same_however_the_file_stores_its_list() -> None:
    header = real("llama-spm")
    short = changed(
        header,
        tokens=header.strings(T + "tokens"),
        token_type=tuple(header.values[T + "token_type"].values()),  # type: ignore[union-attr]
    )
    assert Fingerprint.of(short) == Fingerprint.of(header)
    assert Fingerprint.of(header).is_whole
