"""A vocabulary in kilobytes: enough to tell, nearly always, whether another one fits it.

The tokens' texts are hashed in blocks, once as they are and once with the marks left out, so that
vocabularies that differ in their marks alone are known as such without a look at their files.
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
    """Of one way to read the tokens' texts.

    blocks: of the whole blocks, one after the other.  ends: of what stands behind the last whole
    block, for each size from 128 below the vocabulary's own: what a smaller sibling has there.
    """

    blocks: bytes
    ends: bytes

    def up_to(self, n: int, size: int) -> bytes:
        """Of the first n tokens, one after the other; size: of the vocabulary."""
        end = (n - max(size - MAX_SIZE_DIFFERENCE, 0)) * _HASH_BYTES
        return self.blocks[: n // _BLOCK * _HASH_BYTES] + self.ends[end : end + _HASH_BYTES]


class Fingerprint(msgspec.Struct, frozen=True):
    """texts: all of them.  plain: without those of the marks, but with their places."""

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
        """Equal for vocabularies of equal content, wherever they lie."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:32]

    @property
    def is_whole(self) -> bool:
        """Whether it has a hash for everything that is asked of it."""
        size = self.outline.size
        lengths = size // _BLOCK * _HASH_BYTES, (min(size, MAX_SIZE_DIFFERENCE) + 1) * _HASH_BYTES
        return size >= 0 and all(
            (len(hashes.blocks), len(hashes.ends)) == lengths for hashes in (self.texts, self.plain)
        )


def fits(target: Fingerprint, drafter: Fingerprint) -> bool | None:
    """Whether `compatibility.difference` would find none; None where only the tokens can tell."""
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
            return False  # no mark there, in neither
        verdict = None
    return verdict


def _hashes(tokens: Strings, marks: Sequence[int]) -> Hashes:
    """marks: the tokens whose texts are left out."""
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
    """The hashes of what stands from `begin` to each of the ends, which ascend."""
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
