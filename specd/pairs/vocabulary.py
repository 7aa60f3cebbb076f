"""Read the vocabulary of a GGUF, with llama.cpp's defaults for missing fields."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from specd.store.gguf import GgufHeader, LongArray

_TOKENIZER: Final = "tokenizer.ggml."
#: A kind whose pre-tokenizer is always that of the same name.
_GEMMA4: Final = "gemma4"
#: Kinds that use a pre-tokenizer.
_CUT: Final = frozenset({"gpt2", "hybriddna", "whitespace"})
DEFAULT: Final = "default"
#: Names of pre-tokenizers that select the same one in llama.cpp, and the same merge rule
#: (src/llama-vocab.cpp as vendored in llama-cpp-python 0.3.36); the first name is shown.
GROUPS: Final = (
    (
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano",
    ),
    (
        "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de",
        "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4",
    ),
    ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"),
    ("gpt-4o", "llama4", "kanana2", "talkie"),
    ("gemma4", "granite-embed-multi-311m"),
    ("glm4", "glm5"),
    ("tiny_aya", "cohere2moe"),
    ("bailingmoe", "bailingmoe2", "llada-moe"),
)  # fmt: skip
#: Pre-tokenizers with which a text begins with BOS unless the file says otherwise.
BEGIN_WITH_BOS: Final = frozenset({"llama-bpe", "tekken", "chameleon"})
#: The pre-tokenizer with which a text always begins with BOS.
ALWAYS_WITH_BOS: Final = "gemma4"

_SHOWN: Final = {name: group[0] for group in GROUPS for name in group}


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A vocabulary without its tokens.  merges: their hash.  bos, eos: ids, −1 if there is none."""

    model: str
    pre: str
    size: int
    merges: str
    bos: int
    eos: int
    add_bos: bool
    add_eos: bool


@dataclass(frozen=True, slots=True)
class Strings:
    """A list of strings as a GGUF stores it.

    raw: each string after its length.  ends: the end of each string in `raw`.
    """

    raw: bytes
    ends: Sequence[int]

    def __len__(self) -> int:
        return len(self.ends)

    def between(self, first: int, last: int) -> memoryview:
        """Return the bytes of the strings from `first` up to, not including, `last`."""
        return memoryview(self.raw)[self._begin(first) : self._begin(last)]

    def _begin(self, index: int) -> int:
        return self.ends[index - 1] if index else 0


def outline_of(header: GgufHeader) -> Outline:
    """Return the outline, with llama.cpp's default for each missing field."""
    model, pre = header.text(_TOKENIZER + "model"), header.text(_TOKENIZER + "pre")
    if model == _GEMMA4:
        pre = _GEMMA4
    elif model not in _CUT:
        pre = ""
    pre = shown_name(pre)
    default_bos, default_eos = _default_ids(model)
    add_eos = header.flag(_TOKENIZER + "add_eos_token")
    return Outline(
        model=model,
        pre=pre,
        size=len(strings_of(header, "tokens")),
        merges=hashlib.sha256(strings_of(header, "merges").raw).hexdigest(),
        bos=header.integer(_TOKENIZER + "bos_token_id", default_bos),
        eos=header.integer(_TOKENIZER + "eos_token_id", default_eos),
        add_bos=_adds_bos(model, pre, header.flag(_TOKENIZER + "add_bos_token")),
        add_eos=model == "t5" if add_eos is None else add_eos,
    )


def shown_name(name: str) -> str:
    """Return the first name of the group; llama.cpp's default for an empty name."""
    return _SHOWN.get(name, name) or DEFAULT


def strings_of(header: GgufHeader, name: str) -> Strings:
    """Return the list `tokens` or `merges`, empty if the file has none."""
    value = header.values.get(_TOKENIZER + name)
    if isinstance(value, LongArray) and value.ends is not None:
        return Strings(value.raw, value.ends)
    parts, ends, end = [], array("Q"), 0
    for text in header.strings(_TOKENIZER + name) if isinstance(value, tuple) else ():
        parts.append(struct.pack("<Q", len(text.encode())) + text.encode())
        end += len(parts[-1])
        ends.append(end)
    return Strings(b"".join(parts), ends)


def types_of(header: GgufHeader) -> list[int]:
    """Return the GGUF types of the tokens, as far as the file has them."""
    value = header.values.get(_TOKENIZER + "token_type")
    types = value.values() if isinstance(value, LongArray) else value
    return [t for t in types if isinstance(t, int)] if isinstance(types, tuple) else []


def ids_of(header: GgufHeader, types: Collection[int]) -> list[int]:
    """Return the ids of the tokens of these types, in order."""
    value = header.values.get(_TOKENIZER + "token_type")
    if isinstance(value, LongArray) and value.ends is None:
        import numpy as np  # noqa: PLC0415 - imported late to keep the daemon's start fast

        all_types = np.frombuffer(value.raw, value.code)
        ids: list[int] = np.flatnonzero(np.isin(all_types, list(types))).tolist()
        return ids
    return [i for i, found in enumerate(types_of(header)) if found in types]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A whole vocabulary, megabytes large.  types: GGUF types; missing ones are ordinary text."""

    outline: Outline
    tokens: tuple[str, ...]
    types: Sequence[int] = ()


def vocabulary_of(header: GgufHeader) -> Vocabulary:
    return Vocabulary(outline_of(header), header.strings(_TOKENIZER + "tokens"), types_of(header))


def _adds_bos(model: str, pre: str, flag: bool | None) -> bool:
    if pre == ALWAYS_WITH_BOS:
        return True
    if flag is not None:
        return flag
    return pre in BEGIN_WITH_BOS if model == "gpt2" else model in {"llama", "bert"}


def _default_ids(model: str) -> tuple[int, int]:
    """Return llama.cpp's default ids of BOS and EOS."""
    return {"llama": (1, 2), "gpt2": (11, 11), "bert": (101, -1), "t5": (-1, 1)}.get(
        model, (-1, -1)
    )
