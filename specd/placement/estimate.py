"""What a model will take in memory, before it is loaded: by layer, as it is split among devices.

Weights are the file's tensors, caches are counted as llama.cpp makes them, cell by cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from specd import core
from specd.placement.scratch import Pass, scratch
from specd.store.kv_layout import LayerKv
from specd.store.shape import Shape

#: Bytes of 32 numbers in a cache, by llama.cpp's layout of each format.
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
    """One layer.  cache_bytes: its keys and values, or running states, for all slots."""

    weights_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One model as one engine would load it.

    blocks: first to last.  input_bytes: embeddings of tokens, always in main memory.
    output_bytes: what follows the last block; tied_bytes of that are a second copy of the
    embeddings, which main memory has no need of.  llama.cpp counts it as a layer, and the last
    n_gpu_layers lie on devices: the output is the first to come there and the last to leave.
    extra_bytes: projector and adapters, on the first device where there is one.
    device_scratch_bytes: on each device that is used.  host_scratch_bytes: in main memory, whatever
    is used; staged_bytes: there as well, as soon as a device is used.
    handed_bytes: of the device's scratch what comes from elsewhere with every pass.
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
        """On a machine without devices."""
        return self.in_main_memory(0)

    @property
    def cache_bytes(self) -> int:
        return sum(block.cache_bytes for block in self.blocks)

    @property
    def weights_bytes(self) -> int:
        blocks = sum(block.weights_bytes for block in self.blocks)
        return blocks + self.input_bytes + self.output_bytes - self.tied_bytes

    def on_device(self, n_gpu_layers: int) -> int:
        """Bytes on a single device that holds so many layers; −1 is all of them."""
        n_layers = self._n_layers(n_gpu_layers)
        if n_layers == 0:
            return 0
        last = self.blocks[max(len(self.blocks) + 1 - n_layers, 0) :]
        return _bytes_of(last) + self.output_bytes + self.extra_bytes + self.device_scratch_bytes

    def in_main_memory(self, n_gpu_layers: int) -> int:
        n_layers = self._n_layers(n_gpu_layers)
        first = self.blocks[: max(len(self.blocks) + 1 - n_layers, 0)]
        kv_layout = self.input_bytes + self.host_scratch_bytes + _bytes_of(first)
        if n_layers == 0:
            kv_layout += self.output_bytes - self.tied_bytes
            kv_layout += self.extra_bytes + self.device_scratch_bytes
        else:
            kv_layout += self.staged_bytes
        return kv_layout

    def _n_layers(self, n_gpu_layers: int) -> int:
        """The output is one more than there are blocks."""
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
    """n_ctx: tokens per slot.  n_batch: of one pass.  n_outputs: rows of its results.

    n_rewind: running states that are kept of each sequence beside the present one.
    n_sequences: 0 is one for each slot.
    """
    n_sequences = n_sequences or max(n_slots, 1)
    n_cells = _padded(n_ctx * n_slots)
    n_states = n_sequences * (1 + (n_rewind if shape.is_recurrent and shape.can_rewind else 0))
    widest = max((layer.kv_layout.value for layer in shape.layers), default=0)

    def cache(kv_layout: LayerKv) -> int:
        n_kept = n_cells
        if kv_layout.window:
            n_kept = min(n_cells, _padded(kv_layout.window * n_sequences + n_batch))
        # Without flash attention the values lie in columns, as high as the largest.
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
    """llama.cpp's caches have cells in steps of so many."""
    return -(-n // 256) * 256


def _row_bytes(n: int, kv_cache_type: str) -> int:
    return -(-n // 32) * _CACHE_BLOCK_BYTES[kv_cache_type] if n else 0


def _bytes_of(blocks: tuple[Block, ...]) -> int:
    return sum(block.weights_bytes + block.cache_bytes for block in blocks)


assert set(_CACHE_BLOCK_BYTES) == set(core.KV_CACHE_TYPES)
