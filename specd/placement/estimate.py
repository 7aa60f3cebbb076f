"""Estimate the memory of a model before it is loaded, layer by layer.

Weights are the sizes of the file's tensors.  Caches and scratch are either measured by llama.cpp in
a simulated load, or bounded by a formula that ignores all savings, such as sliding windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specd import core
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
MIB: Final = 2**20
#: Share by which a refusal of memory raises an estimate.
REFUSED_SHARE: Final = 0.25
_FLOAT: Final = 4
#: The longest draft that the engine's controller makes.
MAX_DRAFT: Final = 16
#: Fewest tokens of a pass, and of a pass for embeddings.
_MIN_BATCH, _MIN_EMBED_BATCH = 32, 2048
#: Most bytes of logits of a pass for embeddings.
_MAX_LOGITS_BYTES: Final = 4 * 2**30
#: Share of the weights that saved recurrent states may take.
STATES_SHARE: Final = 1 / 8


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


def simulated_footprint(
    spec: core.EngineSpec, shape: Shape, memory: core.ContextMemory, *, extra_bytes: int = 0
) -> Footprint:
    """Return the footprint of a model whose load was simulated with this context.

    extra_bytes: size of the projector and adapters.
    """
    caches = dict.fromkeys(range(len(shape.layer_bytes)), 0)
    for layer, n_bytes in memory.layers:
        if layer in caches:
            caches[layer] += n_bytes
    n_tokens = _n_batch(spec)
    masks = _mask_bytes(spec, shape, memory.n_cells, n_tokens)
    return _footprint(
        shape,
        cache_bytes=tuple(caches.values()),
        scratch_bytes=memory.scratch_bytes,
        results_bytes=memory.results_bytes,
        masks_bytes=masks,
        n_tokens=n_tokens,
        extra_bytes=extra_bytes,
    )


def upper_bound(
    spec: core.EngineSpec, shape: Shape, *, is_drafter: bool = False, extra_bytes: int = 0
) -> Footprint:
    """Return more than the model takes: every layer attends to the whole context.

    Of recurrent states, the bound assumes as many as the engine saves at most.
    """
    n_slots = 1 if spec.embeds else max(spec.n_slots, 1)
    n_tokens = _n_batch(spec)
    n_outputs = n_slots * (MAX_DRAFT + 1)
    if spec.embeds:
        n_tokens = n_outputs = _n_embed_batch(spec, shape)
    # For embeddings, a pass may be longer than the context, by a row for each of 64 texts.
    n_cells = -(-max(spec.n_ctx * n_slots, n_tokens) // 256) * 256
    keys, values = (_row_bytes(n, spec.kv_cache_type) for n in (shape.n_key, shape.n_value))
    # A recurrent drafter has a second sequence for each slot.
    n_states = 2 * n_slots if is_drafter else n_slots
    states = shape.is_recurrent * n_states * STATES_SHARE
    masks = (1 + shape.has_window) * _mask_bytes(spec, shape, n_cells, n_tokens)
    rows = 12 * shape.n_embd + 4 * shape.n_query + shape.n_key + shape.n_value + 3 * shape.n_ff
    if shape.is_recurrent:
        rows += 24 * shape.n_embd
    scores = 0
    if shape.has_bias:
        scores = (3 * shape.n_heads + 1) * n_cells
    elif spec.flash_attention is False:
        scores = shape.n_heads * n_cells
    logits = n_outputs * shape.n_vocab if shape.has_head else 0
    return _footprint(
        shape,
        cache_bytes=tuple(
            n_cells * (keys + values) + int(states * weights) for weights in shape.layer_bytes
        ),
        scratch_bytes=masks + _FLOAT * ((rows + scores) * n_tokens + logits),
        results_bytes=_FLOAT * n_outputs * (shape.n_vocab + (shape.n_embd if spec.embeds else 0)),
        masks_bytes=masks,
        n_tokens=n_tokens,
        extra_bytes=extra_bytes,
    )


def _footprint(
    shape: Shape,
    *,
    cache_bytes: tuple[int, ...],
    scratch_bytes: int,
    results_bytes: int,
    masks_bytes: int,
    n_tokens: int,
    extra_bytes: int,
) -> Footprint:
    rows_bytes = _FLOAT * shape.n_embd * n_tokens
    return Footprint(
        blocks=tuple(
            Block(weights_bytes=weights, cache_bytes=cache)
            for weights, cache in zip(shape.layer_bytes, cache_bytes, strict=True)
        ),
        input_bytes=shape.input_bytes,
        output_bytes=shape.output_bytes + shape.tied_bytes,
        extra_bytes=extra_bytes,
        device_scratch_bytes=scratch_bytes,
        host_scratch_bytes=results_bytes,
        tied_bytes=shape.tied_bytes,
        # The input, and what its rows are read into.
        staged_bytes=masks_bytes + 2 * rows_bytes,
        transfer_bytes=masks_bytes + rows_bytes,
    )


def _n_batch(spec: core.EngineSpec) -> int:
    return max(min(spec.n_batch, spec.n_ctx * max(spec.n_slots, 1)), _MIN_BATCH)


def _n_embed_batch(spec: core.EngineSpec, shape: Shape) -> int:
    n_rows = 0 if shape.has_head else _MAX_LOGITS_BYTES // (_FLOAT * max(shape.n_vocab, 1))
    n_tokens = min(spec.n_ctx, max(spec.n_batch, _MIN_EMBED_BATCH, n_rows))
    return -(-n_tokens // 64) * 64


def _mask_bytes(spec: core.EngineSpec, shape: Shape, n_cells: int, n_tokens: int) -> int:
    is_flash = spec.flash_attention is not False and not shape.has_bias
    return (2 if is_flash else 4) * n_cells * n_tokens


def _row_bytes(n: int, kv_cache_type: str) -> int:
    return -(-n // 32) * _CACHE_BLOCK_BYTES[kv_cache_type] if n else 0


def _bytes_of(blocks: tuple[Block, ...]) -> int:
    return sum(block.weights_bytes + block.cache_bytes for block in blocks)


assert set(_CACHE_BLOCK_BYTES) == set(core.KV_CACHE_TYPES)
