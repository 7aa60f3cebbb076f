"""Headers with a vocabulary: real, modified or generated."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from gguf import TokenType

from specd.pairs.compatibility import difference
from specd.pairs.fingerprints import Fingerprint, fits
from specd.pairs.vocabulary import Vocabulary, vocabulary_of
from specd.store.gguf import GgufHeader, Value, read_header
from tools.llama_cpp_source import vocabulary_file

T = "tokenizer.ggml."
#: Message about different pre-tokenizers; their two names follow it.
CUT = "the tokenizers cut text differently before they look up tokens"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = (int(kind) for kind in TokenType)


@functools.cache
def real(name: str) -> GgufHeader:
    """Return the header of one of llama.cpp's own vocabularies."""
    return read_header(vocabulary_file(name))


def changed(header: GgufHeader, **values: Value | None) -> GgufHeader:
    """Return the header with values replaced by the last part of their key; None removes one."""
    new = {**header.values, **{T + key: value for key, value in values.items()}}
    return replace(header, values={key: value for key, value in new.items() if value is not None})


def with_tokens(
    header: GgufHeader, tokens: Mapping[int, str], types: Mapping[int, int] = MappingProxyType({})
) -> GgufHeader:
    """Return the header with some tokens and token types replaced, by id."""
    values = {}
    for name, new in (("tokens", tokens), ("token_type", types)):
        found = header.values[T + name]
        all_values = list(found if isinstance(found, tuple) else found.values())  # type: ignore[union-attr]
        for token_id, value in new.items():
            all_values[token_id] = value
        values[name] = tuple(all_values)
    return changed(header, **values)


def padded(header: GgufHeader, n: int) -> GgufHeader:
    """Return the header with n unused ids appended."""
    tokens = header.strings(T + "tokens")
    types = (*([NORMAL] * len(tokens)), *([UNUSED] * n))
    return changed(
        header, tokens=(*tokens, *(f"[PAD{len(tokens) + i}]" for i in range(n))), token_type=types
    )


def made(
    tokens: Sequence[str],
    types: Sequence[int] | None = None,
    *,
    merges: Sequence[str] = ("a b", "c d"),
    **values: Value,
) -> GgufHeader:
    plain: dict[str, Value] = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tuple(tokens),
        "merges": tuple(merges),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if types is not None:
        plain["token_type"] = tuple(types)
    return changed(GgufHeader(Path("made.gguf"), {}, ()), **{**plain, **values})


@functools.cache
def read_real(name: str) -> tuple[Vocabulary, Fingerprint]:
    return vocabulary_of(real(name)), Fingerprint.of(real(name))


def read(header: GgufHeader) -> tuple[Vocabulary, Fingerprint]:
    """Return the vocabulary and its fingerprint; those of an unchanged real file are cached."""
    name = header.path.stem.removeprefix("ggml-vocab-")
    if header.path.suffix == ".gguf" and name != "made" and header is real(name):
        return read_real(name)
    return vocabulary_of(header), Fingerprint.of(header)


def verdict(target: GgufHeader, drafter: GgufHeader) -> str | None:
    """Return the difference as a message, or None.

    Assert that the reverse direction agrees, and the fingerprints where they are decisive.
    """
    (ours, our_print), (theirs, their_print) = read(target), read(drafter)
    said, back = difference(ours, theirs), difference(theirs, ours)
    assert (said is None) == (back is None)
    fingerprints = our_print, their_print
    assert fits(*fingerprints) in {None, said is None}
    assert fits(*fingerprints) is fits(*reversed(fingerprints))
    return said
