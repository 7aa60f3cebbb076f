"""Compare the names of each pre-tokenizer with llama.cpp's source."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from specd.pairs.vocabulary import (
    ALWAYS_WITH_BOS,
    BEGIN_WITH_BOS,
    DEFAULT,
    GROUPS,
    shown_name,
)
from tools.llama_cpp_source import tokenizer_sources


@dataclass
class Chain:
    """The effect of the long `if … else if` of src/llama-vocab.cpp on each name.

    kinds: names by their pre-tokenizer and whether whole words skip merges.
    """

    kinds: dict[tuple[str, bool], set[str]] = field(default_factory=lambda: defaultdict(set))
    with_bos: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def source() -> str:
    return (tokenizer_sources() / "src" / "llama-vocab.cpp").read_text()


@pytest.fixture(scope="module")
def chain(source: str) -> Chain:
    begin = source.index('} else if (tokenizer_pre == "default")')
    branches = source[begin : source.index("unknown pre-tokenizer type")].split("else if (")
    found = Chain()
    for branch in branches[1:]:
        names = set(re.findall(r'tokenizer_pre == "([^"]+)"', branch))
        kind = re.search(r"pre_type = (\w+);", branch)
        assert names
        assert kind is not None
        found.kinds[kind[1], "ignore_merges = true" in branch] |= names
        if "add_bos = true" in branch:
            found.with_bos |= names
    return found


def test_names_are_equal_if_llama_cpp_treats_them_alike(chain: Chain) -> None:
    theirs = {frozenset(names) for names in chain.kinds.values() if len(names) > 1}
    assert len(chain.kinds) > 50
    assert {frozenset(group) for group in GROUPS} == theirs


def test_texts_begin_with_bos_if_llama_cpp_adds_it(chain: Chain, source: str) -> None:
    assert {shown_name(name) for name in chain.with_bos} == BEGIN_WITH_BOS
    assert all(
        name in chain.with_bos for group in GROUPS if group[0] in BEGIN_WITH_BOS for name in group
    )
    assert "if (pre_type == LLAMA_VOCAB_PRE_TYPE_GEMMA4 && !add_bos)" in source
    [gemma4] = (group for group in GROUPS if group[0] == ALWAYS_WITH_BOS)
    assert set(gemma4) == chain.kinds["LLAMA_VOCAB_PRE_TYPE_GEMMA4", False]


@pytest.mark.parametrize(
    "name,shown",
    [
        ("llama3", "llama-bpe"),
        ("llama-bpe", "llama-bpe"),
        ("deepseek-r1-qwen", "qwen2"),
        ("chatglm-bpe", "chatglm-bpe"),
        ("", DEFAULT),
        ("nobody knows this one", "nobody knows this one"),
    ],
)
def test_equal_names_are_shown_as_one(name: str, shown: str) -> None:
    assert shown_name(name) == shown
