"""A tiny deterministic "model" in numpy, as strict about its cache as llama.cpp is."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np

from specd.core import ModelMemory, TokenId
from specd.engine.backend import Batch, DecodeFailed
from specd.engine.media import Media
from specd.engine.sampler import Row

N_VOCAB = 64
WIDTH = 3
EOG = 1
BOS = 0


class FakeBackend:
    """Logits of a row depend on the last three tokens of its slot, through a hash.

    agreement < 1 pulls the logits of a drafter towards noise.  rewind_limit other than None is a
    running state: the slot can be taken back once, right after its pass, by less than its rows of
    it and by no more than the limit; or, with 0, to where it was held.
    """

    def __init__(
        self,
        n_slots: int = 1,
        *,
        n_batch: int = 32,
        n_vocab: int = N_VOCAB,
        agreement: float = 1.0,
        salt: int = 0,
        eog_bias: float = -4.0,
        rewind_limit: int | None = None,
        can_shift: bool = True,
        n_leaves: int = 0,
    ) -> None:
        self.n_vocab = n_vocab
        self.n_batch = n_batch
        self.rewind_limit = rewind_limit
        self.has_equal_splits = rewind_limit is not None
        self.n_leaves = n_leaves
        self.n_leaf_rows = 0
        self.can_shift = can_shift
        self.cells: list[list[TokenId]] = [[] for _ in range(n_slots)]
        self.n_passes = 0
        self.n_rows = 0
        self.fail_next = False
        self._behind: Counter[int] = Counter()
        self._held: dict[int, int] = {}
        self._agreement = agreement
        self._salt = salt
        self._eog_bias = eog_bias
        self._rows: dict[int, Row] = {}

    def decode(self, batch: Batch) -> None:
        assert 0 < len(batch) <= self.n_batch, "llama.cpp would abort"
        if self.fail_next:
            self.fail_next = False
            raise DecodeFailed("made to fail")
        self._rows.clear()
        self.n_passes += 1
        self.n_rows += len(batch)
        self._behind = Counter(batch.slots)
        leaves, leafy = set(batch.leaves), Counter(batch.slots[index] for index in batch.leaves)
        assert not leafy or max(leafy.values()) <= self.n_leaves, "more leaves than the cache takes"
        self.n_leaf_rows += len(leaves)
        held = [len(cells) for cells in self.cells]
        rows = zip(batch.tokens, batch.positions, batch.slots, batch.wants_logits, strict=True)
        for index, (token, position, slot, wants) in enumerate(rows):
            assert 0 <= token < self.n_vocab, "llama.cpp would refuse the batch"
            if index in leaves:
                assert wants
                assert held[slot] < position <= len(self.cells[slot]), "a leaf is at a draft"
                self._rows[index] = self._logits([*self.cells[slot][:position], token])
                continue
            assert position == len(self.cells[slot]), "a gap or a repeat in the positions"
            self.cells[slot].append(token)
            if wants:
                self._rows[index] = self._logits(self.cells[slot])

    def decode_media(
        self, slot: int, n_past: int, media: Media, begin: int, n: int, *, wants_logits: bool
    ) -> None:
        assert 0 < n <= self.n_batch, "llama.cpp would abort"
        assert media.rows is not None, "not encoded yet"
        assert media.rows.shape == (media.n_tokens, WIDTH)
        assert 0 <= begin <= begin + n <= media.n_tokens
        assert n_past == len(self.cells[slot]), "a gap or a repeat in the positions"
        assert self.cells[slot][n_past - begin :] == [media.token] * begin
        self._rows.clear()
        self._behind.clear()
        self.cells[slot] += [media.token] * n
        if wants_logits:
            self._rows[n - 1] = self._logits(self.cells[slot])

    def _logits(self, tokens: list[TokenId]) -> Row:
        last = tuple(tokens[-3:])
        row = _noise(0, last, self.n_vocab).copy()
        if self._agreement < 1.0:
            noise = _noise(self._salt + 1, last, self.n_vocab)
            row = (self._agreement * row + (1 - self._agreement) * noise).astype(np.float32)
        row[EOG] += np.float32(self._eog_bias)
        return row

    def row(self, index: int) -> Row:
        return self._rows[index]

    def reusable(self, slot: int, n_past: int) -> int:
        while 0 < n_past < len(self.cells[slot]) and _within(self.cells[slot], n_past):
            n_past -= 1
        n_back = len(self.cells[slot]) - n_past
        if self.rewind_limit is None or n_back <= 0:
            return min(n_past, len(self.cells[slot]))
        if n_back <= min(self.rewind_limit, self._behind[slot] - 1):
            return n_past
        held = self._held.get(slot, 0)
        return held if held <= n_past else 0

    def rewind(self, slot: int, n_past: int) -> int:
        kept = self.reusable(slot, n_past)
        if kept < len(self.cells[slot]):
            self._behind.pop(slot, None)
            self._held.pop(slot, None)
            del self.cells[slot][kept:]
        return kept

    def checkpoint(self, slot: int) -> None:
        if self.rewind_limit == 0:
            self._held[slot] = len(self.cells[slot])

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        assert self.can_shift
        self._held.pop(slot, None)
        del self.cells[slot][n_keep : n_keep + n_discard]

    def memory(self) -> ModelMemory:
        return ModelMemory(device="CPU", total_bytes=0, vram_bytes=0)

    def close(self) -> None:
        pass


@lru_cache(20_000)
def _noise(salt: int, last: tuple[TokenId, ...], n_vocab: int) -> Row:
    """Return pseudorandom logits that the last tokens decide."""
    key = hash((salt, *last)) & 0xFFFFFFFF
    return np.random.default_rng(key).normal(0, 2, n_vocab).astype(np.float32)


def _within(tokens: list[TokenId], n: int) -> bool:
    """Return whether the first n tokens end inside an image."""
    return tokens[n] < 0 and tokens[n] == tokens[n - 1]


class FakeVocabulary:
    """Token v ≥ 2 is the character chr(63 + v); 0 begins a text, 1 ends it.

    Two tokens are halves of one character: 62 and 63 together are "é".
    """

    n_vocab = N_VOCAB

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        ids = [ord(c) - 63 if 2 <= ord(c) - 63 < 62 else 2 for c in text]
        return [BOS, *ids] if add_bos else ids

    def piece(self, token: TokenId) -> bytes:
        assert 0 <= token < N_VOCAB
        if token < 2:
            return b""
        if token >= 62:
            return "é".encode()[token - 62 : token - 61]
        return chr(63 + token).encode()

    def spelling(self, token: TokenId) -> bytes:
        return self.piece(token)

    def is_eog(self, token: TokenId) -> bool:
        return token == EOG

    def begins_with_bos(self) -> bool:
        return True
