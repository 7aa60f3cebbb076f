"""A model with its cache and scratch buffers: the loop's Backend over llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace

import llama_cpp
import numpy as np

from specd.engine.backend import Batch, DecodeFailed
from specd.engine.llama.cache import (
    AttentionCache,
    Cache,
    ForkedCache,
    NativeMemory,
    SnapshotCache,
)
from specd.engine.llama.library import BufferUse, native_function
from specd.engine.llama.model import LlamaModel
from specd.engine.llama.native import (
    BranchedBatch,
    EmbeddingBatch,
    NativeContext,
    context_params,
)
from specd.engine.media import Media
from specd.engine.sampler import Row
from specd.errors import LoadFailed

#: Most memory for snapshots of recurrent states, as a share of the weights, and the fewest
#: snapshots that are kept in any case: drafts that pay are rarely shorter.
SNAPSHOT_SHARE, FEWEST_SNAPSHOTS = 1 / 8, 3

#: Most sequences of a context with leaves, since every pass visits all pairs of them.
_MOST_SEQUENCES = 64

#: The number of cells of a cache is a multiple of this.
_CELLS = 256

#: The bindings' function returns a typed pointer, which is much slower than a plain address.
_logits_address = native_function(
    "llama_get_logits_ith", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
)


class LlamaContext(NativeContext):
    """One `llama_context`, used by one thread."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        n_ctx: int,
        n_slots: int,
        n_batch: int,
        n_outputs: int,
        n_threads: int = 0,
        flash_attention: bool | None = None,
        kv_cache_type: str = "f16",
        n_rewind: int = 0,
        n_ahead: int = 0,
        n_leaves: int = 0,
        cache_per_slot: bool = False,
        watcher: Callable[[object, bool, object], bool] | None = None,
    ) -> None:
        """Create the context.  Raises LoadFailed.

        n_ctx: tokens per slot.  n_outputs: most rows with logits in one pass.
        n_rewind: longest draft to verify; `rewind_limit` says how far the cache really goes back.
        n_ahead: longest draft that this model makes as a drafter.
        n_leaves: most leaves of a slot, if the cache supports any.
        cache_per_slot: each slot has its own cells, so their layout depends on no other slot.
        watcher: a native callback that sees the results of a pass (`probe.py`).
        """
        self._model = model
        params = context_params(
            n_threads=n_threads, flash_attention=flash_attention, kv_cache_type=kv_cache_type
        )
        params.n_ctx = n_ctx * n_slots
        params.n_batch = params.n_ubatch = n_batch
        # Sliding windows keep only the cells in use; cache.py knows when a rewind needs more.
        params.swa_full = False
        if cache_per_slot:
            params.kv_unified = False
            # llama.cpp would round each slot's share up to this, with a warning.
            params.n_ctx = -(-n_ctx // _CELLS) * _CELLS * n_slots
        if watcher is not None:
            params.cb_eval = watcher
        forks = n_ahead > 0 and model.is_recurrent
        # In the pass after one with leaves, each slot may have a row to evaluate again.
        if cache_per_slot or not model.can_branch or n_batch < 2 * n_slots:
            n_leaves = 0
        # llama.cpp has at least one row of results for each sequence.
        n_leaves = max(min(n_leaves, min(n_outputs, _MOST_SEQUENCES) // n_slots - 1), 0)
        params.n_seq_max = 2 * n_slots if forks else n_slots * (1 + n_leaves)
        params.n_outputs_max = n_outputs
        if model.is_recurrent and not forks:
            # llama.cpp aborts the process if a batch is not longer than the rows it may not split.
            n_rewind = max(min(n_rewind, n_batch - 2), 0)
            params.n_rs_seq = _max_snapshots(model, n_rewind, n_slots)
        super().__init__(model, params)
        memory = llama_cpp.llama_get_memory(self.handle)
        if not memory:
            self.close()
            raise LoadFailed(f"{model.path} cannot generate text: it has no KV cache")
        self._cache = self._make_cache(NativeMemory(memory), n_slots, n_ahead, n_leaves)
        self.n_leaves = self._cache.n_leaves
        self.rewind_limit = self._cache.rewind_limit
        self.has_equal_splits = self._cache.has_equal_splits or (cache_per_slot and n_slots > 1)
        self.n_vocab = model.vocabulary.n_vocab
        self.can_shift = bool(llama_cpp.llama_memory_can_shift(memory))
        self._n_outputs = n_outputs
        self._rows: dict[int, Row] = {}
        #: By slot, for those that hold an image.
        self._position_maps: dict[int, PositionMap] = {}

    def _make_cache(self, memory: NativeMemory, n_slots: int, n_ahead: int, n_leaves: int) -> Cache:
        if not self._model.is_recurrent:
            # A draft of n_ahead tokens may push as many cells out of the drafter's window.
            window = self._model.window and max(self._model.window - n_ahead, 1)
            return AttentionCache(memory, window, n_slots, n_leaves)
        if n_snapshots := int(llama_cpp.llama_n_rs_seq(self.handle)):
            return SnapshotCache(memory, n_snapshots)
        return ForkedCache(memory, n_slots, has_checkpoints=n_ahead > 0)

    def decode(self, batch: Batch) -> None:
        if not 0 < len(batch) <= self.n_batch or sum(batch.wants_logits) > self._n_outputs:
            # llama.cpp would abort the process.
            raise DecodeFailed(f"a batch of {len(batch)} rows does not fit")
        if self._position_maps:
            rows = zip(batch.slots, batch.positions, strict=True)
            batch = replace(batch, positions=[self._position(slot, n) for slot, n in rows])
        if not batch.leaves:
            self._batch.fill(batch, list(map(self._cache.sequence, batch.slots)))
            self._decode(self._batch.native)
            self._cache.record_batch(batch)
            return
        branched = BranchedBatch(batch, self._cache.branch(batch))
        try:
            self._decode(branched.native)
        finally:
            self._cache.record_batch(batch)

    def decode_media(
        self, slot: int, n_past: int, media: Media, begin: int, n: int, *, wants_logits: bool
    ) -> None:
        assert media.rows is not None
        position_map, first = self._position_maps.setdefault(slot, PositionMap()), n_past - begin
        if begin == 0:
            position_map.add(first, media)
        part = slice(begin, begin + n)
        positions = media.positions(position_map.position(first))[:, part]
        sequence = self._cache.sequence(slot)
        batch = EmbeddingBatch(media.rows[part], positions, sequence, wants_logits=wants_logits)
        llama_cpp.llama_set_causal_attn(self.handle, media.is_causal)
        try:
            self._decode(batch.native)
        finally:
            llama_cpp.llama_set_causal_attn(self.handle, True)
        # Rows of an image leave no snapshots to which a rewind could return.
        self._cache.record_batch(Batch())

    def _decode(self, batch: llama_cpp.llama_batch) -> None:
        code = llama_cpp.llama_decode(self.handle, batch)
        if code != 0:
            raise DecodeFailed(f"llama.cpp could not decode the batch (code {code})")
        llama_cpp.llama_synchronize(self.handle)

    def row(self, index: int) -> Row:
        address = _logits_address(self.handle, index)
        if not address:
            raise DecodeFailed(f"row {index} has no logits")
        # llama.cpp writes its rows to the same few addresses, so keep one view of each.
        if (known := self._rows.get(address)) is not None:
            return known
        buffer = (ctypes.c_float * self.n_vocab).from_address(address)
        row: Row = np.frombuffer(buffer, dtype=np.float32)  # type: ignore[call-overload]
        return self._rows.setdefault(address, row)

    def _position(self, slot: int, n: int) -> int:
        """Return the position of the token after the slot's first n."""
        position_map = self._position_maps.get(slot)
        return n if position_map is None else position_map.position(n)

    def reusable(self, slot: int, n_past: int) -> int:
        if (position_map := self._position_maps.get(slot)) is None:
            return self._cache.reusable(slot, n_past)
        end = position_map.cache_end(position_map.without_cut_media(n_past))
        return position_map.tokens(self._cache.reusable(slot, end))

    def rewind(self, slot: int, n_past: int) -> int:
        if (position_map := self._position_maps.get(slot)) is None:
            return self._cache.rewind(slot, n_past)
        end = position_map.cache_end(position_map.without_cut_media(n_past))
        n_remaining = position_map.tokens(self._cache.rewind(slot, end))
        position_map.truncate(n_remaining)
        if not position_map:
            del self._position_maps[slot]
        return n_remaining

    def checkpoint(self, slot: int) -> None:
        self._cache.checkpoint(slot)

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        self._cache.shift(slot, n_keep, n_discard)


def _max_snapshots(model: LlamaModel, n_wanted: int, n_slots: int) -> int:
    """Return how many states to keep per slot besides the current one.

    The size of a state is read from a small context.  llama.cpp reduces the number to 0 for models
    that support no snapshots.
    """
    if n_wanted == 0:
        return 0
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_outputs_max = 256, 1, 1
    params.n_batch = params.n_ubatch = 32
    buffers, n_buffers = model.native_log.buffers, len(model.native_log.buffers)
    handle = llama_cpp.llama_init_from_model(model.handle, params)
    if not handle:
        return 0
    llama_cpp.llama_free(handle)
    made = buffers[n_buffers:]
    state_bytes = sum(buffer.n_bytes for buffer in made if buffer.use is BufferUse.STATES) * n_slots
    del buffers[n_buffers:]
    share = int(SNAPSHOT_SHARE * llama_cpp.llama_model_size(model.handle))
    return min(n_wanted, max(share // max(state_bytes, 1), FEWEST_SNAPSHOTS))


@dataclass(frozen=True, slots=True)
class _Span:
    """The place of an image.  first: index of its first token, which is at `position`."""

    first: int
    position: int
    media: Media

    @property
    def end(self) -> int:
        return self.first + self.media.n_tokens

    @property
    def end_position(self) -> int:
        """One more than the last position of its cells."""
        plane = self.media.plane
        return self.position + (plane.extent if plane is not None else self.media.n_tokens)

    @property
    def n_saved(self) -> int:
        """Number of its tokens less number of its positions."""
        return self.media.n_tokens - self.media.n_positions


class PositionMap:
    """The images of one slot, and the conversion between token counts and positions.

    Positions are consecutive except for images in a plane, which have fewer positions than tokens.
    An image is kept or removed as a whole.
    """

    def __init__(self) -> None:
        self._spans: list[_Span] = []

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, first: int, media: Media) -> None:
        """Add an image after all others.  first: index of its first token."""
        self._spans.append(_Span(first, self.position(first), media))

    def truncate(self, n: int) -> None:
        """Remove the images beyond the first n tokens."""
        self._spans = [span for span in self._spans if span.end <= n]

    def position(self, n: int) -> int:
        """Return the position of the token after the first n."""
        return n - sum(span.n_saved for span in self._spans if span.end <= n)

    def without_cut_media(self, n: int) -> int:
        """Return n, or the start of the image that a cut after n tokens would split."""
        return next((span.first for span in self._spans if span.first < n < span.end), n)

    def cache_end(self, n: int) -> int:
        """Return where the cache ends with the first n tokens, which split no image."""
        last = next((span for span in self._spans if span.end == n), None)
        return last.end_position if last is not None else self.position(n)

    def tokens(self, cache_end: int) -> int:
        """Return how many tokens a cache with that end holds, without a partial image."""
        n = cache_end
        n_saved = 0
        for span in self._spans:
            if span.position >= cache_end:
                break
            if span.end_position > cache_end:
                return span.first
            n_saved += span.n_saved
            n = max(cache_end + n_saved, span.end)
        return n
