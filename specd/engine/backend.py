"""The interface of a model for the loop: decode rows, read logits, edit the cache.

`llama/` implements it over llama.cpp; the tests have a deterministic one in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from specd.core import ModelMemory, TokenId
from specd.engine.media import Media
from specd.engine.sampler import Row


@dataclass(slots=True)
class Batch:
    """The rows of one pass, in order of position within each slot.

    wants_logits: for each row, whether its logits are computed.
    leaves: indices of rows that are an alternative to their slot's row at the same position.  A
    leaf attends to its slot's rows before that position, no row attends to it, and the cache does
    not keep it.  The leaves of a slot follow its other rows.
    """

    tokens: list[TokenId] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    wants_logits: list[bool] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)

    def add(self, token: TokenId, position: int, slot: int, *, wants_logits: bool) -> int:
        """Append a row and return its index, by which its logits are read."""
        self.tokens.append(token)
        self.positions.append(position)
        self.slots.append(slot)
        self.wants_logits.append(wants_logits)
        return len(self.tokens) - 1

    def add_leaf(self, token: TokenId, position: int, slot: int) -> int:
        """Append a leaf with logits and return its index."""
        self.leaves.append(len(self.tokens))
        return self.add(token, position, slot, wants_logits=True)

    def __len__(self) -> int:
        return len(self.tokens)


class DecodeFailed(Exception):
    """A pass failed; the cache of every slot in the batch is undefined until cleared."""


class Backend(Protocol):
    """One model and its cache, with several slots.

    New positions of a slot follow the end of its cache without a gap.  `rewind` moves that end back
    as far as the kind of cache allows.
    """

    n_vocab: int
    #: Most rows of one pass.
    n_batch: int
    #: Whether tokens can be dropped from the middle of a slot's cache.
    can_shift: bool
    #: Most tokens that a slot can rewind right after a pass with one row more; None: any.  It also
    #: limits drafts.  Recurrent states have such a limit, 0 unless copies of a state are kept.
    rewind_limit: int | None
    #: Whether llama.cpp splits a pass whose slots have different numbers of rows.
    has_equal_splits: bool
    #: Most leaves of a slot in one pass; 0 if the cache supports none.
    n_leaves: int

    def decode(self, batch: Batch) -> None:
        """Run one pass and wait for it.  Raises DecodeFailed."""
        ...

    def decode_media(
        self, slot: int, n_past: int, media: Media, begin: int, n: int, *, wants_logits: bool
    ) -> None:
        """Run a pass of n ≤ n_batch embeddings, from `begin` on, after the slot's first n_past.

        wants_logits: whether the last row gets logits.  Raises DecodeFailed.
        """
        ...

    def row(self, index: int) -> Row:
        """Return the logits [n_vocab] of a batch row that has them, valid until the next pass."""
        ...

    def reusable(self, slot: int, n_past: int) -> int:
        """Return how many tokens `rewind` would keep; never a part of an image."""
        ...

    def rewind(self, slot: int, n_past: int) -> int:
        """Cut the slot's cache to n_past tokens, or to fewer if it cannot keep that many.

        Return how many are kept: n_past within rewind_limit, and always if nothing is cut.
        """
        ...

    def checkpoint(self, slot: int) -> None:
        """Set a checkpoint: later rewinds of the slot stop at or after its current end."""
        ...

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        """Drop n_discard tokens after the first n_keep and move the rest forward."""
        ...

    def memory(self) -> ModelMemory: ...

    def close(self) -> None: ...


class Vocabulary(Protocol):
    """The vocabulary of a model: converts text to token ids and back."""

    n_vocab: int

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        """Return the tokens of a text; control tokens in the text are recognised.

        add_bos: add a BOS if the vocabulary asks for one.
        Raises InvalidRequest for a text that the tokenizer cannot read.
        """
        ...

    def piece(self, token: TokenId) -> bytes:
        """Return the token's bytes; empty for control tokens."""
        ...

    def spelling(self, token: TokenId) -> bytes:
        """Return the token's bytes; for a control token, the text that is tokenized to it."""
        ...

    def is_eog(self, token: TokenId) -> bool: ...

    def begins_with_bos(self) -> bool:
        """Return whether tokenize(add_bos=True) adds a BOS; a context shift must not drop it."""
        ...
