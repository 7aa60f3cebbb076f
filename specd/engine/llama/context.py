"""A model with its cache and scratch buffers: the loop's Backend over llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

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
from specd.engine.llama.library import BufferUse, NativeLog
from specd.engine.llama.model import LlamaModel
from specd.engine.llama.native import (
    BranchedBatch,
    EmbeddingBatch,
    NativeContext,
    context_params,
)
from specd.engine.llama.position_map import PositionMap
from specd.engine.media import Media
from specd.engine.sampler import Row
from specd.errors import LoadFailed

#: Most memory for snapshots of recurrent states, as a share of the weights, and the fewest
#: snapshots that are kept in any case: drafts that pay are rarely shorter.
_SNAPSHOT_SHARE, _FEWEST_SNAPSHOTS = 1 / 8, 3

#: Most sequences of a context with leaves, since every pass visits all pairs of them.
_MOST_SEQUENCES = 64

#: The number of cells of a cache is a multiple of this.
_CELLS = 256

#: The function of the bindings, but with a plain address as its result, which is much faster.
_logits_address = llama_cpp.llama_cpp._lib["llama_get_logits_ith"]  # noqa: SLF001
_logits_address.argtypes = [ctypes.c_void_p, ctypes.c_int32]
_logits_address.restype = ctypes.c_void_p


class LlamaContext(NativeContext):
    """One `llama_context`, used by one thread."""

    def __init__(
        self,
        model: LlamaModel,
        native_log: NativeLog,
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
        """Create the context.

        n_ctx: tokens per slot.  n_outputs: most rows with logits in one pass.
        cache_per_slot: each slot has its own cells, in order of its positions, so their layout
        does not depend on the other slots.
        watcher: a native callback that sees the results of a pass (`probe.py`).
        n_rewind: longest draft to verify; `rewind_limit` says how far the cache really goes back.
        n_ahead: longest draft that this model makes as a drafter.
        n_leaves: most leaves of a slot, if the cache supports any.
        Raises LoadFailed if the cache type is unknown or memory does not suffice.
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
            params.n_rs_seq = _max_snapshots(model, native_log, n_rewind, n_slots)
        super().__init__(model, params, native_log)
        memory = llama_cpp.llama_get_memory(self._handle)
        if not memory:
            self.close()
            raise LoadFailed(f"{model.path} cannot generate text: it has no KV cache")
        self._cache = _make_cache(
            self._handle, NativeMemory(memory), model, n_slots, n_ahead, n_leaves
        )
        self.n_leaves = self._cache.n_leaves
        self.rewind_limit = self._cache.rewind_limit
        self.has_equal_splits = self._cache.has_equal_splits or (cache_per_slot and n_slots > 1)
        self.n_vocab = model.vocabulary.n_vocab
        self.can_shift = bool(llama_cpp.llama_memory_can_shift(memory))
        self._n_outputs = n_outputs
        self._rows: dict[int, Row] = {}
        #: By slot, for those that hold an image.
        self._position_maps: dict[int, PositionMap] = {}

    def decode(self, batch: Batch) -> None:
        if not 0 < len(batch) <= self.n_batch or sum(batch.wants_logits) > self._n_outputs:
            # llama.cpp would abort the process.
            raise DecodeFailed(f"a batch of {len(batch)} rows does not fit")
        if self._position_maps:
            rows = zip(batch.slots, batch.positions, strict=True)
            batch = replace(batch, positions=[self._position(slot, n) for slot, n in rows])
        if batch.leaves:
            self._decode_branches(batch)
        else:
            self._batch.fill(batch, list(map(self._cache.sequence, batch.slots)))
            self._decode(self._batch.native)
            self._cache.record_batch(batch)

    def _decode_branches(self, batch: Batch) -> None:
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
        llama_cpp.llama_set_causal_attn(self._handle, media.is_causal)
        try:
            self._decode(batch.native)
        finally:
            llama_cpp.llama_set_causal_attn(self._handle, True)
        # Rows of an image leave no snapshots to which a rewind could return.
        self._cache.record_batch(Batch())

    def _decode(self, batch: llama_cpp.llama_batch) -> None:
        code = llama_cpp.llama_decode(self._handle, batch)
        if code != 0:
            raise DecodeFailed(f"llama.cpp could not decode the batch (code {code})")
        llama_cpp.llama_synchronize(self._handle)

    def row(self, index: int) -> Row:
        address = _logits_address(self._handle, index)
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
        return position_map.tokens(
            self._cache.reusable(
                slot, position_map.cache_end(position_map.without_cut_media(n_past))
            )
        )

    def rewind(self, slot: int, n_past: int) -> int:
        if (position_map := self._position_maps.get(slot)) is None:
            return self._cache.rewind(slot, n_past)
        n_remaining = position_map.tokens(
            self._cache.rewind(slot, position_map.cache_end(position_map.without_cut_media(n_past)))
        )
        position_map.truncate(n_remaining)
        if not position_map:
            del self._position_maps[slot]
        return n_remaining

    def checkpoint(self, slot: int) -> None:
        self._cache.checkpoint(slot)

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        self._cache.shift(slot, n_keep, n_discard)


def _make_cache(
    handle: object,
    memory: NativeMemory,
    model: LlamaModel,
    n_slots: int,
    n_ahead: int,
    n_leaves: int,
) -> Cache:
    if not model.is_recurrent:
        # A draft of n_ahead tokens may push as many cells out of the drafter's window.
        window = model.window and max(model.window - n_ahead, 1)
        return AttentionCache(memory, window, n_slots, n_leaves)
    if n_snapshots := int(llama_cpp.llama_n_rs_seq(handle)):
        return SnapshotCache(memory, n_snapshots)
    return ForkedCache(memory, n_slots, has_checkpoints=n_ahead > 0)


def _max_snapshots(model: LlamaModel, native_log: NativeLog, n_wanted: int, n_slots: int) -> int:
    """Return how many states to keep per slot besides the current one.

    The size of a state is read from a small context.  llama.cpp reduces the number to 0 for models
    that support no snapshots.
    """
    if n_wanted == 0:
        return 0
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_outputs_max = 256, 1, 1
    params.n_batch = params.n_ubatch = 32
    n_buffers = len(native_log.buffers)
    handle = llama_cpp.llama_init_from_model(model.handle, params)
    if not handle:
        return 0
    llama_cpp.llama_free(handle)
    made = native_log.buffers[n_buffers:]
    bytes_per_state = (
        sum(buffer.n_bytes for buffer in made if buffer.use is BufferUse.STATES) * n_slots
    )
    del native_log.buffers[n_buffers:]
    share = int(_SNAPSHOT_SHARE * llama_cpp.llama_model_size(model.handle))
    return min(n_wanted, max(share // max(bytes_per_state, 1), _FEWEST_SNAPSHOTS))
