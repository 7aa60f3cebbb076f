"""What the loop needs of a model: decode rows, read logits, edit the cache.

`llama/` implements it over llama.cpp; tests have a deterministic one in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from specd.core import ModelMemory, TokenId
from specd.engine.media import Media
from specd.engine.sampler import Row


@dataclass(slots=True)
class Batch:
    """Rows of one pass, in order of position within each slot; `wants_logits[i]` asks for row i.

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
        """Append a leaf, whose logits are wanted, and return its index."""
        self.leaves.append(len(self.tokens))
        return self.add(token, position, slot, wants_logits=True)

    def __len__(self) -> int:
        return len(self.tokens)


class DecodeFailed(Exception):
    """A pass came to nothing; the cache of every slot in the batch is undefined until cleared."""


class Backend(Protocol):
    """One model and its cache, several slots.

    Positions of a slot continue without a gap where its cache ends; `rewind` moves that end back
    as far as the kind of cache allows.
    """

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_batch(self) -> int:
        """Most rows that one pass takes."""
        ...

    @property
    def can_shift(self) -> bool:
        """Whether tokens can be dropped from the middle of a slot's cache."""
        ...

    @property
    def rewind_limit(self) -> int | None:
        """Tokens that a slot can take back right after a pass that brought one more: None is any.

        Drafts that are tried on this model can be no longer.  Running states have such a limit,
        most often 0: without copies of them nothing can be taken back.
        """
        ...

    @property
    def has_equal_splits(self) -> bool:
        """Whether a pass is several inside when its slots bring different numbers of rows."""
        ...

    @property
    def n_leaves(self) -> int:
        """Most leaves of a slot in one pass; 0 if the cache supports none."""
        ...

    def decode(self, batch: Batch) -> None:
        """Run one pass and wait for it.  Raises DecodeFailed."""
        ...

    def decode_media(
        self, slot: int, n_past: int, media: Media, begin: int, n: int, *, wants_logits: bool
    ) -> None:
        """Run a pass of n ≤ n_batch embeddings from `begin` on, behind the slot's first n_past.

        The last row has logits where they are wanted.  Raises DecodeFailed.
        """
        ...

    def row(self, index: int) -> Row:
        """Logits [n_vocab] of a batch row that asked for them, valid until the next pass."""
        ...

    def reusable(self, slot: int, n_past: int) -> int:
        """How many tokens `rewind` would keep; never a part of an image."""
        ...

    def rewind(self, slot: int, n_past: int) -> int:
        """Keep the slot's first n_past tokens, or as many fewer as its cache has to lose.

        Returns how many are kept: n_past within rewind_limit, and always where nothing is cut.
        """
        ...

    def checkpoint(self, slot: int) -> None:
        """A draft follows what the slot holds now: rewinds will end here, or later."""
        ...

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        """Drop n_discard tokens after the first n_keep and move the rest up."""
        ...

    def memory(self) -> ModelMemory: ...

    def close(self) -> None: ...


class Vocabulary(Protocol):
    """Text ⇄ token ids of a model."""

    @property
    def n_vocab(self) -> int: ...

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        """Special tokens in the text are recognised; BOS is added where the vocabulary says so.

        Raises InvalidRequest for a text that the tokenizer cannot read.
        """
        ...

    def piece(self, token: TokenId) -> bytes:
        """The token's bytes; empty for control tokens."""
        ...

    def spelling(self, token: TokenId) -> bytes:
        """The token's bytes, which of a control token are the text that is tokenized to it."""
        ...

    def is_eog(self, token: TokenId) -> bool: ...

    def begins_with_bos(self) -> bool:
        """Whether tokenize(add_bos=True) adds a BOS: a context shift must never drop it."""
        ...
