"""Decide whether the tokens of target and drafter have the same meaning.

The rules are llama.cpp's (common/speculative.cpp, `common_speculative_are_compatible`): kind of
vocabulary, BOS and EOS where they are added, sizes at most 128 apart, and equal text for every id
from 5 on.  Pre-tokenizer and merges are compared as well, since equal token lists can still split
one text differently.  Scores play no part: they change no token's text.

One rule is less strict than llama.cpp's: control tokens may differ, see `may_differ`.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Final

from specd.pairs.vocabulary import Outline, Vocabulary

MAX_SIZE_DIFFERENCE: Final = 128
FIRST_COMPARED_ID: Final = 5

#: GGUF's types of tokens (llama.cpp's LLAMA_TOKEN_TYPE_*).
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
MARKS: Final = frozenset({_UNKNOWN, _CONTROL, _UNUSED})
"""Types of tokens that are control tokens or unused entries, not text."""
_ADDED: Final = MARKS | {_USER_DEFINED}


def difference(target: Vocabulary, drafter: Vocabulary) -> str | None:
    """Return why the two are incompatible, as the end of a sentence; None if they fit."""
    return (
        outline_difference(target.outline, drafter.outline)
        or _token_difference(target, drafter)
        or merges_difference(target.outline, drafter.outline)
    )


def outline_difference(target: Outline, drafter: Outline) -> str | None:
    """Return the difference that shows without the tokens; None if there is none."""
    if not (target.size and drafter.size):
        which = "the drafter" if target.size else "the model"
        return f"{which} has no vocabulary"
    return (
        _kind_difference(target, drafter)
        or _special_difference(target, drafter)
        or _size_difference(target, drafter)
    )


def merges_difference(target: Outline, drafter: Outline) -> str | None:
    if target.merges != drafter.merges:
        return "the tokenizers join the same tokens in a different order (their merges differ)"
    return None


def may_differ(ours: int, theirs: int) -> bool:
    """Return whether tokens of these types may have different texts under one id.

    Fine-tunes of one family use spare ids differently: one has a control token or `<think>` where
    the other has a reserved id.  So one of the two must be a control or unused token, and neither
    may be ordinary text.  The answer stays correct: the target checks each drafted token.  The
    drafter may draft worse after such a token, which costs speed at most, and drafting is switched
    off if it does not pay.
    """
    return ours in _ADDED and theirs in _ADDED and (ours in MARKS or theirs in MARKS)


def _kind_difference(target: Outline, drafter: Outline) -> str | None:
    if target.model != drafter.model:
        return f"the tokenizers are of different kinds ({target.model}, {drafter.model})"
    if target.pre != drafter.pre:
        return (
            "the tokenizers cut text differently before they look up tokens"
            f" ({target.pre}, {drafter.pre})"
        )
    return None


def _special_difference(target: Outline, drafter: Outline) -> str | None:
    if target.add_bos != drafter.add_bos:
        return "only one of the two begins every text with a token of its own"
    if target.add_bos and target.bos != drafter.bos:
        return f"the texts begin with different tokens ({target.bos}, {drafter.bos})"
    if target.add_eos != drafter.add_eos:
        return "only one of the two ends every text with a token of its own"
    if target.add_eos and target.eos != drafter.eos:
        return f"the texts end with different tokens ({target.eos}, {drafter.eos})"
    return None


def _size_difference(target: Outline, drafter: Outline) -> str | None:
    if abs(target.size - drafter.size) > MAX_SIZE_DIFFERENCE:
        return (
            f"the vocabularies have {target.size} and {drafter.size} tokens,"
            f" more than {MAX_SIZE_DIFFERENCE} apart"
        )
    return None


def _token_difference(target: Vocabulary, drafter: Vocabulary) -> str | None:
    if target.tokens == drafter.tokens:
        return None
    types = zip(
        chain(target.types, repeat(_NORMAL)), chain(drafter.types, repeat(_NORMAL)), strict=False
    )
    common = zip(target.tokens, drafter.tokens, types, strict=False)
    for token_id, (ours, theirs, their_types) in enumerate(common):
        if ours == theirs or token_id < FIRST_COMPARED_ID or may_differ(*their_types):
            continue
        return f"token {token_id} is {_shown(ours)} in one and {_shown(theirs)} in the other"
    return None


def _shown(token: str) -> str:
    return f"“{token if len(token) <= 40 else token[:39] + '…'}”"
