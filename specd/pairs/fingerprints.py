"""A vocabulary in kilobytes: enough to tell, nearly always, whether another one fits it.

The tokens' texts are hashed in blocks, once as they are and once with the marks left out, so that
vocabularies that differ in their marks alone are known as such without a look at their files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
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

    def up_to(self, n: int, size: int) -> Iterator[bytes]:
        """Of the first n tokens, in order; size: of the vocabulary."""
        last = n - max(size - MAX_SIZE_DIFFERENCE, 0)
        return chain(
            (_hash_at(self.blocks, i) for i in range(n // _BLOCK)), (_hash_at(self.ends, last),)
        )


class Fingerprint(msgspec.Struct, frozen=True):
    """texts: all of them.  plain: without those of the marks, but with their places."""

    outline: Outline
    texts: Hashes
    plain: Hashes

    @classmethod
    def of(cls, header: GgufHeader) -> Self:
        tokens, marks = strings_of(header, "tokens"), ids_of(header, MARKS)
        return cls(outline_of(header), *_hashes(tokens, marks[: bisect_left(marks, len(tokens))]))

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
    if target.texts == drafter.texts or target.plain == drafter.plain:
        return True
    n = min(outline.size for outline in outlines)
    blocks = zip(*(
        hashes.up_to(n, found.outline.size)
        for found in (target, drafter)
        for hashes in (found.texts, found.plain)
    ), strict=True)  # fmt: skip
    verdict: bool | None = True
    for our_texts, our_plain, their_texts, their_plain in blocks:
        if our_texts == their_texts or our_plain == their_plain:
            continue
        if our_texts == our_plain and their_texts == their_plain:
            return False  # no mark there, in neither
        verdict = None
    return verdict


def _hashes(tokens: Strings, marks: Sequence[int]) -> tuple[Hashes, Hashes]:
    """With the marks' texts, and without."""
    size = len(tokens)
    blocks = [(at, at + _BLOCK) for at in range(0, size - _BLOCK + 1, _BLOCK)]
    ends = [(n - n % _BLOCK, n) for n in range(max(size - MAX_SIZE_DIFFERENCE, 0), size + 1)]
    both = [[_hash(tokens, marks, *span) for span in spans] for spans in (blocks, ends)]
    texts, plain = ([b"".join(pair[way] for pair in part) for part in both] for way in (0, 1))
    return Hashes(*texts), Hashes(*plain)


def _hash(tokens: Strings, marks: Sequence[int], first: int, last: int) -> tuple[bytes, bytes]:
    at = min(max(first, FIRST_COMPARED_ID), last)
    texts = plain = hashlib.blake2b(tokens.between(at, last), digest_size=_HASH_BYTES).digest()
    if there := marks[bisect_left(marks, at) : bisect_left(marks, last)]:
        hashed = hashlib.blake2b(digest_size=_HASH_BYTES)
        for mark in there:
            hashed.update(tokens.between(at, mark))
            hashed.update(_MARK)
            at = mark + 1
        hashed.update(tokens.between(at, last))
        plain = hashed.digest()
    return texts, plain


def _hash_at(hashes: bytes, index: int) -> bytes:
    return hashes[index * _HASH_BYTES : (index + 1) * _HASH_BYTES]
