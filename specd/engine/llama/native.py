"""The parts that all uses of a `llama_context` share: parameters, batches, memory."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import llama_cpp
import numpy as np

from specd.core import KV_CACHE_TYPES, ModelMemory
from specd.engine.backend import Batch
from specd.engine.llama.library import Buffer, BufferUse
from specd.engine.llama.model import LlamaModel
from specd.engine.media import Positions, Rows
from specd.errors import LoadFailed

#: ggml's numbers for core.KV_CACHE_TYPES; the bindings lack some of the names.
_GGML_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_MAIN_MEMORY = "CPU"
_FLASH_ATTENTION = {
    None: llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    False: llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    True: llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}


def context_params(
    *, n_threads: int, flash_attention: bool | None, kv_cache_type: str
) -> llama_cpp.llama_context_params:
    """Return parameters for one cache that all sequences share.  Raises LoadFailed.

    n_threads: 0: llama.cpp's choice.
    """
    if kv_cache_type not in _GGML_TYPES:
        known = ", ".join(_GGML_TYPES)
        raise LoadFailed(f"unknown KV cache type {kv_cache_type!r} (one of {known})")
    params = llama_cpp.llama_context_default_params()
    # With a cache per sequence llama.cpp splits ragged batches into several passes.
    params.kv_unified = True
    params.flash_attn_type = _FLASH_ATTENTION[flash_attention]
    params.type_k = params.type_v = _GGML_TYPES[kv_cache_type]
    if n_threads > 0:
        params.n_threads = params.n_threads_batch = n_threads
    return params


def make_context(
    model: LlamaModel, params: llama_cpp.llama_context_params
) -> llama_cpp.llama_context_p:
    """Create a context with the model's adapters.  Raises LoadFailed with llama.cpp's reason."""
    n_buffers = len(model.native_log.buffers)
    handle = llama_cpp.llama_init_from_model(model.handle, params)
    if not handle and params.n_rs_seq:
        # Try without snapshots of recurrent states: serving without drafts is better than failing.
        params.n_rs_seq = 0
        del model.native_log.buffers[n_buffers:]
        handle = llama_cpp.llama_init_from_model(model.handle, params)
    if not handle:
        raise model.native_log.load_error(f"cannot make a context for {model.path}")
    if n := len(model.adapters):
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * n)(*model.adapters)
        scales = (ctypes.c_float * n)(*[1.0] * n)
        llama_cpp.llama_set_adapters_lora(handle, handles, n, scales)
    return handle


def memory_of(buffers: Collection[Buffer], model_bytes: int) -> ModelMemory:
    """Return the memory of the buffers that llama.cpp logged.  model_bytes: of all weights.

    Parts of a mapped file may also be repacked in memory for the CPU.  Then nothing reads their
    pages in the mapping any more, so those parts count once.
    """
    by_use: Counter[BufferUse] = Counter()
    by_device: Counter[str] = Counter()
    in_main_memory = Counter({True: 0})
    for buffer in buffers:
        by_use[buffer.use] += buffer.n_bytes
        by_device[_device(buffer.name)] += buffer.n_bytes
        if buffer.use is BufferUse.WEIGHTS and _device(buffer.name) == _MAIN_MEMORY:
            in_main_memory[buffer.name.endswith("_Mapped")] += buffer.n_bytes
    if in_main_memory[True]:
        twice = max(in_main_memory.total() - model_bytes, 0)
        by_use[BufferUse.WEIGHTS] -= twice
        by_device[_MAIN_MEMORY] -= twice
    accelerators = {name: n for name, n in by_device.items() if name != _MAIN_MEMORY}
    return ModelMemory(
        device=next(iter(accelerators), _MAIN_MEMORY),
        total_bytes=by_device.total(),
        vram_bytes=sum(accelerators.values()),
        by_device=tuple(by_device.items()),
        weights_bytes=by_use[BufferUse.WEIGHTS] + by_use[BufferUse.EXTRAS],
        cache_bytes=by_use[BufferUse.CACHE] + by_use[BufferUse.STATES],
        scratch_bytes=by_use[BufferUse.SCRATCH] + by_use[BufferUse.LOGITS],
    )


def _device(buffer_name: str) -> str:
    """Return llama.cpp's name of a buffer's device: CUDA0 for CUDA0, MTL0 for MTL0_Mapped.

    It is CPU for buffers in main memory: CPU, CPU_Mapped, CPU_REPACK, CUDA_Host and others.
    """
    if buffer_name.startswith((_MAIN_MEMORY, "AMX", "BLAS")) or buffer_name.endswith("_Host"):
        return _MAIN_MEMORY
    return buffer_name.partition("_")[0]


class NativeBatch:
    """A reusable `llama_batch` for up to `room` rows.

    It uses plain ctypes arrays.  CPU caches are cold between two passes, and for the few rows of a
    step an assignment to such an array takes a fraction of the time that numpy takes.
    """

    def __init__(self, room: int) -> None:
        self._tokens = (llama_cpp.llama_token * room)()
        self._positions = (llama_cpp.llama_pos * room)()
        self._sequences = (llama_cpp.llama_seq_id * room)()
        self._logits = (ctypes.c_int8 * room)()
        # Each row has an array of one id; the arrays are adjacent.
        width = ctypes.sizeof(llama_cpp.llama_seq_id)
        begin = ctypes.addressof(self._sequences)
        pointer = ctypes.POINTER(llama_cpp.llama_seq_id)
        ids = (ctypes.c_void_p * room)(*range(begin, begin + room * width, width))
        self.native = llama_cpp.llama_batch(
            token=self._tokens,
            pos=self._positions,
            n_seq_id=(ctypes.c_int32 * room)(*[1] * room),
            seq_id=ctypes.cast(ids, ctypes.POINTER(pointer)),
            logits=self._logits,
        )

    def fill(self, batch: Batch, sequences: Sequence[int]) -> None:
        """Copy a batch into the native one.  sequences: the sequence of each row."""
        n = len(batch)
        self.native.n_tokens = n
        self._tokens[:n] = batch.tokens
        self._positions[:n] = batch.positions
        self._logits[:n] = batch.wants_logits  # type: ignore[assignment]  # 0 or 1
        self._sequences[:n] = sequences


class NativeContext:
    """One `llama_context` with its batch, used by one thread."""

    def __init__(self, model: LlamaModel, params: llama_cpp.llama_context_params) -> None:
        """Create the context.  Raises LoadFailed with llama.cpp's reason."""
        self.handle: llama_cpp.llama_context_p | None = make_context(model, params)
        self.n_batch = int(llama_cpp.llama_n_batch(self.handle))
        self._batch = NativeBatch(self.n_batch)
        # llama.cpp starts with one row for each sequence, and does not log when it allocates more.
        rows_bytes = (params.n_outputs_max or self.n_batch) * _row_bytes(model, params)
        #: Bytes of the rows of logits and vectors.
        self.results_bytes = rows_bytes
        self._buffers = memory_of(
            [
                replace(buffer, n_bytes=rows_bytes) if buffer.use is BufferUse.LOGITS else buffer
                for buffer in model.native_log.buffers
            ],
            int(llama_cpp.llama_model_size(model.handle)),
        )

    def memory(self) -> ModelMemory:
        return self._buffers

    def close(self) -> None:
        if self.handle:
            llama_cpp.llama_free(self.handle)
            self.handle = None


def _row_bytes(model: LlamaModel, params: llama_cpp.llama_context_params) -> int:
    """Return the bytes of a row of results: logits, and a vector if embeddings are on."""
    n_embd = int(llama_cpp.llama_model_n_embd_out(model.handle)) if params.embeddings else 0
    return ctypes.sizeof(ctypes.c_float) * (model.vocabulary.n_vocab + n_embd)


class BranchedBatch:
    """A `llama_batch` for one pass whose rows belong to several sequences each."""

    def __init__(self, batch: Batch, sequences: Sequence[Sequence[int]]) -> None:
        n = len(batch)
        ids = [(llama_cpp.llama_seq_id * len(several))(*several) for several in sequences]
        self.native = llama_cpp.llama_batch(
            n_tokens=n,
            token=(llama_cpp.llama_token * n)(*batch.tokens),
            pos=(llama_cpp.llama_pos * n)(*batch.positions),
            n_seq_id=(ctypes.c_int32 * n)(*map(len, sequences)),
            seq_id=(ctypes.POINTER(llama_cpp.llama_seq_id) * n)(*ids),
            logits=(ctypes.c_int8 * n)(*batch.wants_logits),
        )


class EmbeddingBatch:
    """A `llama_batch` for one pass with embeddings [n, width] of one sequence.

    positions: [1, n], or [4, n] in a plane.  wants_logits: whether the last row gets logits.
    """

    def __init__(
        self, rows: Rows, positions: Positions, sequence: int, *, wants_logits: bool
    ) -> None:
        n = len(rows)
        ids = (llama_cpp.llama_seq_id * 1)(sequence)
        logits = (ctypes.c_int8 * n)()
        logits[n - 1] = wants_logits
        # Native code keeps references to these while the batch lives.
        self._rows = np.ascontiguousarray(rows, np.float32)
        self._positions = np.ascontiguousarray(positions, np.int32)
        self.native = llama_cpp.llama_batch(
            n_tokens=n,
            embd=self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=self._positions.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_pos)),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=(ctypes.POINTER(llama_cpp.llama_seq_id) * n)(*[ids] * n),
            logits=logits,
        )


assert set(_GGML_TYPES) == set(KV_CACHE_TYPES)
assert ctypes.sizeof(llama_cpp.llama_token) == np.dtype(np.int32).itemsize
