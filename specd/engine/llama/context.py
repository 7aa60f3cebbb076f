"""A model with its cache and scratch buffers: the Backend that the loop decodes on."""

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

#: What the states before the last few tokens may cost, as a share of the weights, and the fewest
#: that are kept whatever they cost: drafts are rarely shorter where they pay.
_SNAPSHOT_SHARE, _FEWEST_SNAPSHOTS = 1 / 8, 3

#: Sequences of a context for the sake of leaves: every pass looks at all pairs of them.
_MOST_SEQUENCES = 64

#: A cache has a multiple of so many cells.
_CELLS = 256

#: The same function as the bindings', but returning a bare address, which costs far less.
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
        """n_ctx: tokens per slot.  n_outputs: most rows with logits in one pass.

        cache_per_slot: each slot has cells of its own, in order of its positions; what a row
        attends to then lies alike whatever the other slots hold.
        watcher: a native callback that sees the results of a pass (`probe.py`).

        n_rewind: longest draft to be tried on this model; how far it goes back in truth is
        `rewind_limit`.  n_ahead: longest draft that this model itself makes, where it is a drafter.
        n_leaves: of a slot, where the cache can have any.
        Raises LoadFailed when the cache type is unknown or the buffers cannot be had.
        """
        self._model = model
        params = context_params(
            n_threads=n_threads, flash_attention=flash_attention, kv_cache_type=kv_cache_type
        )
        params.n_ctx = n_ctx * n_slots
        params.n_batch = params.n_ubatch = n_batch
        # Windows keep what they still look at: `cache` knows when that is too little.
        params.swa_full = False
        if cache_per_slot:
            params.kv_unified = False
            # llama.cpp rounds each slot's share up to that, and warns where it had to.
            params.n_ctx = -(-n_ctx // _CELLS) * _CELLS * n_slots
        if watcher is not None:
            params.cb_eval = watcher
        forks = n_ahead > 0 and model.is_recurrent
        # In the pass after one with leaves, each slot may have a row to read again.
        if cache_per_slot or not model.can_branch or n_batch < 2 * n_slots:
            n_leaves = 0
        # A cache has a row of results for each sequence, at least.
        n_leaves = max(min(n_leaves, min(n_outputs, _MOST_SEQUENCES) // n_slots - 1), 0)
        params.n_seq_max = 2 * n_slots if forks else n_slots * (1 + n_leaves)
        params.n_outputs_max = n_outputs
        if model.is_recurrent and not forks:
            # llama.cpp ends the process over a batch no longer than what it must not split.
            n_rewind = max(min(n_rewind, n_batch - 2), 0)
            params.n_rs_seq = _max_snapshots(model, native_log, n_rewind, n_slots)
        super().__init__(model, params, native_log)
        memory = llama_cpp.llama_get_memory(self._handle)
        if not memory:
            self.close()
            raise LoadFailed(f"{model.path} cannot generate text: it remembers none")
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
        #: Of the slots that hold an image.
        self._position_maps: dict[int, PositionMap] = {}

    def decode(self, batch: Batch) -> None:
        if not 0 < len(batch) <= self.n_batch or sum(batch.wants_logits) > self._n_outputs:
            # Either would abort the process.
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
        # Rows in a plane leave no states that a rewind could name.
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
        # llama.cpp writes its rows to the same few places: make each view of them once.
        if (known := self._rows.get(address)) is not None:
            return known
        buffer = (ctypes.c_float * self.n_vocab).from_address(address)
        row: Row = np.frombuffer(buffer, dtype=np.float32)  # type: ignore[call-overload]
        return self._rows.setdefault(address, row)

    def _position(self, slot: int, n: int) -> int:
        """That of the token behind the slot's first n."""
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
        # What a drafter runs ahead of its history may push as much out of its window: no matter.
        window = model.window and max(model.window - n_ahead, 1)
        return AttentionCache(memory, window, n_slots, n_leaves)
    if n_snapshots := int(llama_cpp.llama_n_rs_seq(handle)):
        return SnapshotCache(memory, n_snapshots)
    return ForkedCache(memory, n_slots, has_checkpoints=n_ahead > 0)


def _max_snapshots(model: LlamaModel, native_log: NativeLog, n_wanted: int, n_slots: int) -> int:
    """States to keep per slot besides the current one; llama.cpp clamps it to 0 where it has none.

    What one state takes is read from a context of a single slot.
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
