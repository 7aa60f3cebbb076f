"""Whether a drafter's tokens mean to the target what they mean to the drafter.

The rules are llama.cpp's (common/speculative.cpp, `common_speculative_are_compatible`): kind of
vocabulary, BOS and EOS where they are added, sizes at most 128 apart, and equal text for every id
from 5 on.  Pre-tokenizer and merges are compared as well, since equal token lists can still split
one text differently.  Token types and scores play no part: they change no token's text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from specd.store.file_cache import FileCache
from specd.store.gguf import GgufHeader, read_header

MAX_SIZE_DIFFERENCE: Final = 128
FIRST_COMPARED_ID: Final = 5

_TOKENIZER: Final = "tokenizer.ggml."
# llama.cpp treats these pre-tokenizers as one, and adds BOS for them and for tekken and chameleon.
_LLAMA3: Final = frozenset({"llama3", "llama-v3", "llama-bpe"})
_BPE_WITH_BOS: Final = frozenset({"llama-bpe", "tekken", "chameleon"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a tokenizer is made of.  merges: their hash; bos, eos: −1 where there is none."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    merges: str
    bos: int
    eos: int
    add_bos: bool
    add_eos: bool

    @property
    def fingerprint(self) -> str:
        """Equal for vocabularies of equal content, wherever they lie."""
        return _hash(msgspec.msgpack.encode(self))


def vocabulary_of(header: GgufHeader) -> Vocabulary:
    """A field that the file leaves out takes llama.cpp's default for its kind of vocabulary."""
    model, pre = header.text(_TOKENIZER + "model"), header.text(_TOKENIZER + "pre")
    pre = "llama-bpe" if pre in _LLAMA3 else pre or "default"
    add_bos, add_eos = (
        header.flag(_TOKENIZER + "add_bos_token"),
        header.flag(_TOKENIZER + "add_eos_token"),
    )
    default_bos, default_eos = _default_ids(model)
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=header.strings(_TOKENIZER + "tokens"),
        merges=_hash(msgspec.msgpack.encode(header.strings(_TOKENIZER + "merges"))),
        bos=header.integer(_TOKENIZER + "bos_token_id", default_bos),
        eos=header.integer(_TOKENIZER + "eos_token_id", default_eos),
        add_bos=_adds_bos(model, pre) if add_bos is None else add_bos,
        add_eos=model == "t5" if add_eos is None else add_eos,
    )


def difference(target: Vocabulary, drafter: Vocabulary) -> str | None:
    """Why the two do not fit, as the end of a sentence; None when they do."""
    if not (target.tokens and drafter.tokens):
        which = "the drafter" if target.tokens else "the model"
        return f"{which} carries no vocabulary"
    return (
        _kind_difference(target, drafter)
        or _special_difference(target, drafter)
        or _token_difference(target, drafter)
    )


def _kind_difference(target: Vocabulary, drafter: Vocabulary) -> str | None:
    if target.model != drafter.model:
        return f"the tokenizers are of different kinds ({target.model}, {drafter.model})"
    if target.pre != drafter.pre:
        return (
            "the tokenizers cut text differently before they look up tokens"
            f" ({target.pre}, {drafter.pre})"
        )
    return None


def _special_difference(target: Vocabulary, drafter: Vocabulary) -> str | None:
    if target.add_bos != drafter.add_bos:
        return "only one of the two begins every text with a token of its own"
    if target.add_bos and target.bos != drafter.bos:
        return f"the texts begin with different tokens ({target.bos}, {drafter.bos})"
    if target.add_eos != drafter.add_eos:
        return "only one of the two ends every text with a token of its own"
    if target.add_eos and target.eos != drafter.eos:
        return f"the texts end with different tokens ({target.eos}, {drafter.eos})"
    return None


def _token_difference(target: Vocabulary, drafter: Vocabulary) -> str | None:
    sizes = len(target.tokens), len(drafter.tokens)
    if abs(sizes[0] - sizes[1]) > MAX_SIZE_DIFFERENCE:
        return (
            f"the vocabularies have {sizes[0]} and {sizes[1]} tokens,"
            f" more than {MAX_SIZE_DIFFERENCE} apart"
        )
    common = list(zip(target.tokens, drafter.tokens, strict=False))
    for token_id, (ours, theirs) in enumerate(common):
        if token_id >= FIRST_COMPARED_ID and ours != theirs:
            return f"token {token_id} is {_shown(ours)} in one and {_shown(theirs)} in the other"
    if target.merges != drafter.merges:
        return "the tokenizers join the same tokens in a different order (their merges differ)"
    return None


class Compatibility:
    """Verdicts on files, each found once per content.

    A vocabulary of a real model is megabytes, so only fingerprints and verdicts stay in memory.
    """

    def __init__(self) -> None:
        self._fingerprints: FileCache[str] = FileCache(lambda path: _read(path).fingerprint)
        self._verdicts: dict[tuple[str, str], str | None] = {}

    def difference(self, target: Path, drafter: Path) -> str | None:
        """Like the function of that name, for two GGUF files; raises StoreError."""
        key = self._fingerprints.get(target), self._fingerprints.get(drafter)
        if key[0] == key[1]:
            return None
        if key not in self._verdicts:
            self._verdicts[key] = difference(_read(target), _read(drafter))
        return self._verdicts[key]


def _read(path: Path) -> Vocabulary:
    return vocabulary_of(read_header(path))


def _adds_bos(model: str, pre: str) -> bool:
    return pre in _BPE_WITH_BOS if model == "gpt2" else model in {"llama", "bert"}


def _default_ids(model: str) -> tuple[int, int]:
    """BOS and EOS of llama.cpp where a file names none."""
    return {"llama": (1, 2), "gpt2": (11, 11), "bert": (101, -1), "t5": (-1, 1)}.get(
        model, (-1, -1)
    )


def _shown(token: str) -> str:
    return f"“{token if len(token) <= 40 else token[:39] + '…'}”"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
