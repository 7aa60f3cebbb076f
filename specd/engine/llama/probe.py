"""A context that records the inputs of each multiplication with weights, for the self-check.

Logits alone are not enough for the comparison of rows.  Quantized weights round their input to 8
bits, so in a small model a difference in attention reaches the logits in one row of a hundred.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from specd.engine.backend import Batch, DecodeFailed
from specd.engine.llama.context import LlamaContext
from specd.engine.llama.library import native_function
from specd.engine.llama.model import LlamaModel
from specd.engine.sampler import Row

_WATCHED = frozenset({b"MUL_MAT", b"MUL_MAT_ID"})


class ProbeTimeout(Exception):
    """The deadline of the self-check has passed."""


class Tensor(ctypes.Structure):
    """The first fields of the struct `ggml_tensor`, with the layout of `library.VERSION`."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("buffer", ctypes.c_void_p),
        ("extents", ctypes.c_int64 * 4),
        ("strides", ctypes.c_size_t * 4),
        ("operation", ctypes.c_int32),
        ("parameters", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("sources", ctypes.c_void_p * 10),
    )


_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
name_of = native_function("ggml_get_name", ctypes.c_char_p, _POINTER)
operation_of = native_function("ggml_op_desc", ctypes.c_char_p, _POINTER)
n_bytes_of = native_function("ggml_nbytes", _SIZE, _POINTER)
_read = native_function("ggml_backend_tensor_get", None, _POINTER, _POINTER, _SIZE, _SIZE)


def _multiplies_weights(tensor: Any) -> bool:
    if operation_of(tensor) not in _WATCHED:
        return False
    weights = Tensor.from_address(tensor).sources[0]
    if b".weight" not in name_of(weights):
        return False
    # If each head has its own weights, the input is stored by head and not by row.
    per_head = Tensor.from_address(weights).extents[2] > 1
    return not per_head or operation_of(tensor) == b"MUL_MAT_ID"


def _values(tensor: Any) -> npt.NDArray[np.uint8]:
    """Return the tensor's bytes, row after row without gaps."""
    head = Tensor.from_address(tensor)
    span = np.empty(n_bytes_of(tensor), np.uint8)
    _read(tensor, span.ctypes.data, 0, len(span))
    n_bytes = head.extents[0] * head.strides[0]
    shape = (*head.extents[:0:-1], n_bytes)
    rows = np.lib.stride_tricks.as_strided(span, shape, (*head.strides[:0:-1], 1))
    return np.ascontiguousarray(rows).reshape(-1)


class ProbeContext(LlamaContext):
    """The `exactness.Probe` over llama.cpp."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        deadline: float | None = None,
        **fields: Any,
    ) -> None:
        """Create the context.  Raises LoadFailed.

        deadline: on time.monotonic(); no pass begins after it.  fields: those of LlamaContext.
        """
        self._deadline = deadline
        self._watching = False
        self._seen: list[npt.NDArray[np.uint8]] = []
        self._history: Any = None
        # Native code keeps a reference to it while the context lives.
        self._watcher = llama_cpp.ggml_backend_sched_eval_callback(self._watch)
        super().__init__(model, watcher=self._watcher, **fields)
        self._memory = llama_cpp.llama_get_memory(self.handle)
        self._wants_row: list[bool] = []
        #: Bytes per row of each recorded input, from a pass of one row.
        self._row_bytes: list[int] = []

    def _watch(self, tensor: Any, ask: bool, _user_data: Any) -> bool:
        """Record the input of each multiplication with weights.  ask: is the result wanted?"""
        if ask:
            return self._watching and _multiplies_weights(tensor)
        self._seen.append(_values(Tensor.from_address(tensor).sources[1]))
        return True

    def decode(self, batch: Batch) -> None:
        """Run a watched pass.  Raises DecodeFailed, ProbeTimeout."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise ProbeTimeout
        self._seen.clear()
        self._wants_row = batch.wants_logits
        self._watching = True
        try:
            super().decode(batch)
        finally:
            self._watching = False
        if len(batch) == 1:
            self._row_bytes = [len(values) for values in self._seen]

    def row(self, index: int) -> Row:
        """Return all recorded inputs of the row and its logits; run a pass of one row first."""
        parts = []
        for values, n_bytes in zip(self._seen, self._row_bytes, strict=True):
            rows = values.reshape(-1, n_bytes)
            # After the last attention, llama.cpp continues only with the rows that want logits.
            is_whole = len(rows) == len(self._wants_row)
            parts.append(rows[index if is_whole else sum(self._wants_row[:index])])
        logits = super().row(index).view(np.uint8)
        return np.concatenate([*parts, logits]).view(np.float32)

    def save_history(self) -> None:
        sequence = self._cache.sequence(0)
        size = llama_cpp.llama_state_seq_get_size(self.handle, sequence)
        self._history = (ctypes.c_uint8 * size)()
        n = llama_cpp.llama_state_seq_get_data(self.handle, self._history, size, sequence)
        if not n:
            raise DecodeFailed("llama.cpp could not copy the state of a sequence")

    def restore_history(self, slots: Sequence[int]) -> None:
        if self.n_leaves:
            for slot in slots:
                self._cache.rewind(slot, 0)
        llama_cpp.llama_memory_clear(self._memory, True)
        for slot in slots:
            sequence = self._cache.sequence(slot)
            size = len(self._history)
            if not llama_cpp.llama_state_seq_set_data(self.handle, self._history, size, sequence):
                raise DecodeFailed("llama.cpp could not restore the state of a sequence")
