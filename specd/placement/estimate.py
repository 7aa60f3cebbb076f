"""Estimate the memory of a model before it is loaded, layer by layer.

Weights are the sizes of the file's tensors.  Caches are counted in cells, as llama.cpp makes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from specd import core
from specd.placement.scratch import Pass, scratch
from specd.store.kv_layout import LayerKv
from specd.store.shape import Shape

#: Bytes of a cache block of 32 numbers, by llama.cpp's format.
_CACHE_BLOCK_BYTES = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer of a model.  cache_bytes: keys and values, or recurrent states, of all slots."""

    weights_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory of one model as one engine would load it.

    llama.cpp counts the output as one more layer and puts the last n_gpu_layers on devices.

    blocks: first to last.  input_bytes: token embeddings, always in main memory.
    output_bytes: all that follows the last block.  tied_bytes: the part of output_bytes that copies
    the embeddings; in main memory this copy is not made.
    extra_bytes: projector and adapters, on the first device if there is one.
    device_scratch_bytes: scratch on each used device.
    host_scratch_bytes: scratch in main memory in all cases.
    staged_bytes: more scratch in main memory if a device is used.
    transfer_bytes: the part of device_scratch_bytes that is copied to the device at every pass.
    """

    blocks: tuple[Block, ...]
    input_bytes: int
    output_bytes: int
    extra_bytes: int
    device_scratch_bytes: int
    host_scratch_bytes: int
    tied_bytes: int = 0
    staged_bytes: int = 0
    transfer_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes on a machine without devices."""
        return self.in_main_memory(0)

    @property
    def cache_bytes(self) -> int:
        return sum(block.cache_bytes for block in self.blocks)

    @property
    def weights_bytes(self) -> int:
        blocks = sum(block.weights_bytes for block in self.blocks)
        return blocks + self.input_bytes + self.output_bytes - self.tied_bytes

    def on_device(self, n_gpu_layers: int) -> int:
        """Return the bytes on a single device that holds `n_gpu_layers` layers; −1 means all."""
        n_layers = self._n_layers(n_gpu_layers)
        if n_layers == 0:
            return 0
        last = self.blocks[max(len(self.blocks) + 1 - n_layers, 0) :]
        return _bytes_of(last) + self.output_bytes + self.extra_bytes + self.device_scratch_bytes

    def in_main_memory(self, n_gpu_layers: int) -> int:
        """Return the bytes in main memory if devices hold `n_gpu_layers` layers; −1 means all."""
        n_layers = self._n_layers(n_gpu_layers)
        first = self.blocks[: max(len(self.blocks) + 1 - n_layers, 0)]
        n_bytes = self.input_bytes + self.host_scratch_bytes + _bytes_of(first)
        if n_layers == 0:
            n_bytes += self.output_bytes - self.tied_bytes
            n_bytes += self.extra_bytes + self.device_scratch_bytes
        else:
            n_bytes += self.staged_bytes
        return n_bytes

    def _n_layers(self, n_gpu_layers: int) -> int:
        """Return the layers on devices as a number ≥ 0; the output is one of them."""
        return len(self.blocks) + 1 if n_gpu_layers < 0 else n_gpu_layers


def footprint(
    shape: Shape,
    *,
    n_ctx: int,
    n_slots: int,
    n_batch: int,
    kv_cache_type: str,
    n_outputs: int,
    flash_attention: bool | None,
    n_rewind: int,
    extra_bytes: int = 0,
    n_sequences: int = 0,
) -> Footprint:
    """Return the memory of a model of this shape.

    n_ctx: tokens per slot.  n_batch: tokens of one pass.  n_outputs: rows of logits of one pass.
    n_rewind: earlier recurrent states that are saved per sequence.
    n_sequences: 0 means one per slot.
    """
    n_sequences = n_sequences or max(n_slots, 1)
    n_cells = _padded(n_ctx * n_slots)
    n_states = n_sequences * (1 + (n_rewind if shape.is_recurrent and shape.can_rewind else 0))
    widest = max((layer.kv_layout.value for layer in shape.layers), default=0)

    def cache(kv_layout: LayerKv) -> int:
        n_kept = n_cells
        if kv_layout.window:
            n_kept = min(n_cells, _padded(kv_layout.window * n_sequences + n_batch))
        # Without flash attention, values are stored transposed, in columns of the largest height.
        value = widest if flash_attention is False and kv_layout.value else kv_layout.value
        rows = _row_bytes(kv_layout.key, kv_cache_type) + _row_bytes(value, kv_cache_type)
        return rows * n_kept + 4 * kv_layout.state * n_states

    windows = max((layer.kv_layout.window for layer in shape.layers), default=0)
    needed = scratch(
        shape,
        Pass(
            n_tokens=-(-n_batch // n_sequences) * n_sequences,
            n_cells=n_cells if shape.has_cache else n_batch,
            n_window_cells=min(n_cells, _padded(windows * n_sequences + n_batch)) if windows else 0,
            n_outputs=n_outputs,
            n_states=n_states,
            flash_attention=flash_attention is not False and shape.architecture != "grok",
        ),
    )
    return Footprint(
        blocks=tuple(
            Block(weights_bytes=layer.weights_bytes, cache_bytes=cache(layer.kv_layout))
            for layer in shape.layers
        ),
        input_bytes=shape.input_bytes,
        output_bytes=shape.output_bytes + shape.tied_bytes,
        extra_bytes=extra_bytes,
        device_scratch_bytes=needed.device_bytes,
        host_scratch_bytes=needed.logits_bytes,
        tied_bytes=shape.tied_bytes,
        staged_bytes=needed.staged_bytes,
        transfer_bytes=needed.transfer_bytes,
    )


def _padded(n: int) -> int:
    """Return `n` rounded up to a multiple of 256, as llama.cpp sizes its caches."""
    return -(-n // 256) * 256


def _row_bytes(n: int, kv_cache_type: str) -> int:
    return -(-n // 32) * _CACHE_BLOCK_BYTES[kv_cache_type] if n else 0


def _bytes_of(blocks: tuple[Block, ...]) -> int:
    return sum(block.weights_bytes + block.cache_bytes for block in blocks)


assert set(_CACHE_BLOCK_BYTES) == set(core.KV_CACHE_TYPES)
