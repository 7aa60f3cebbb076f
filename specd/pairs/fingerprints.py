"""Fingerprints of vocabularies: a few kilobytes that nearly always decide compatibility.

The tokens' texts are hashed in blocks, once with and once without control tokens.  So vocabularies
that differ only in control tokens are recognised without reading their files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Final, Self

import msgspec

from specd.pairs.compatibility import (
    FIRST_COMPARED_ID,
    MARKS,
    MAX_SIZE_DIFFERENCE,
    merges_difference,
    outline_difference,
)
from specd.pairs.vocabulary import Outline, Strings, ids_of, outline_of, strings_of
from specd.store.gguf import GgufHeader

_BLOCK: Final = 1024
_HASH_BYTES: Final = 8
#: In place of a mark's text: no string has this length.
_MARK: Final = b"\xff" * 8


class Hashes(msgspec.Struct, frozen=True):
    """The hashes of the tokens' texts, in blocks.

    blocks: the hashes of all whole blocks, concatenated.
    ends: the hash of the tokens after the last whole block, for each size from 128 below the
    vocabulary's: a compatible vocabulary may be that much smaller.
    """

    blocks: bytes
    ends: bytes

    def up_to(self, n: int, size: int) -> bytes:
        """Return the hashes of the first `n` tokens, concatenated.  size: of the vocabulary."""
        end = (n - max(size - MAX_SIZE_DIFFERENCE, 0)) * _HASH_BYTES
        return self.blocks[: n // _BLOCK * _HASH_BYTES] + self.ends[end : end + _HASH_BYTES]


class Fingerprint(msgspec.Struct, frozen=True):
    """The fingerprint of one vocabulary.

    texts: hashes of all texts.  plain: hashes with a placeholder for each control token.
    """

    outline: Outline
    texts: Hashes
    plain: Hashes

    @classmethod
    def of(cls, header: GgufHeader) -> Self:
        tokens, marks = strings_of(header, "tokens"), ids_of(header, MARKS)
        marks = marks[: bisect_left(marks, len(tokens))]
        return cls(outline_of(header), _hashes(tokens, ()), _hashes(tokens, marks))

    @property
    def name(self) -> str:
        """A name that is equal for vocabularies of equal content."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:32]

    @property
    def is_whole(self) -> bool:
        """Whether it has all its hashes."""
        size = self.outline.size
        lengths = size // _BLOCK * _HASH_BYTES, (min(size, MAX_SIZE_DIFFERENCE) + 1) * _HASH_BYTES
        return size >= 0 and all(
            (len(hashes.blocks), len(hashes.ends)) == lengths for hashes in (self.texts, self.plain)
        )


def fits(target: Fingerprint, drafter: Fingerprint) -> bool | None:
    """Return whether `compatibility.difference` would be None; None if that needs the tokens."""
    outlines = target.outline, drafter.outline
    if outline_difference(*outlines) or merges_difference(*outlines):
        return False
    n = min(outline.size for outline in outlines)
    ours, theirs = (
        [hashes.up_to(n, found.outline.size) for hashes in (found.texts, found.plain)]
        for found in (target, drafter)
    )
    if ours[0] == theirs[0] or ours[1] == theirs[1]:
        return True
    verdict: bool | None = True
    for at in range(0, len(ours[0]), _HASH_BYTES):
        our_texts, our_plain, their_texts, their_plain = (
            hashes[at : at + _HASH_BYTES] for hashes in (*ours, *theirs)
        )
        if our_texts == their_texts or our_plain == their_plain:
            continue
        if our_texts == our_plain and their_texts == their_plain:
            return False  # a difference in a block without control tokens
        verdict = None
    return verdict


def _hashes(tokens: Strings, marks: Sequence[int]) -> Hashes:
    """Return the hashes.  marks: the tokens to replace with a placeholder."""
    size = len(tokens)
    begins = range(0, size - _BLOCK + 1, _BLOCK)
    whole = (_hash_to(tokens, marks, begin, [begin + _BLOCK]) for begin in begins)
    sizes = range(max(size - MAX_SIZE_DIFFERENCE, 0), size + 1)
    ends = (
        _hash_to(tokens, marks, begin, list(group))
        for begin, group in groupby(sizes, lambda n: n - n % _BLOCK)
    )
    return Hashes(b"".join(whole), b"".join(ends))


def _hash_to(tokens: Strings, marks: Sequence[int], begin: int, ends: Sequence[int]) -> bytes:
    """Return the hashes from `begin` to each of the ends, which ascend, concatenated."""
    hashed, at, digests = blake2b(digest_size=_HASH_BYTES), begin, []
    for end in ends:
        _feed(hashed, tokens, marks, max(at, FIRST_COMPARED_ID), end)
        digests.append(hashed.digest())
        at = end
    return b"".join(digests)


def _feed(hashed: blake2b, tokens: Strings, marks: Sequence[int], at: int, end: int) -> None:
    if at >= end:
        return
    for mark in marks[bisect_left(marks, at) : bisect_left(marks, end)]:
        hashed.update(tokens.between(at, mark))
        hashed.update(_MARK)
        at = mark + 1
    hashed.update(tokens.between(at, end))
