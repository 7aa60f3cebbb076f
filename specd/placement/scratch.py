"""Estimate llama.cpp's compute buffers: the memory of a pass besides weights and cache.

The graph has one buffer, as large as the tensors that are alive at the worst step of a pass.  Which
step that is depends on the shape of the model, so each candidate is computed here.  The formulas
were fitted to llama.cpp on models of forty architectures; an unknown one counts as a plain
transformer.
"""

from __future__ import annotations

from dataclasses import dataclass

from specd.store.shape import Experts, Shape, Width

_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The largest pass of an engine.

    n_tokens: rows.  n_cells: cells of the cache.
    n_window_cells: cells of the cache of layers with a sliding window, 0 if there are none.
    n_outputs: rows of logits.  n_states: recurrent states that are updated at once.
    """

    n_tokens: int
    n_cells: int
    n_window_cells: int
    n_outputs: int
    n_states: int
    flash_attention: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """The compute buffers of one model.

    device_bytes: on each device with layers.  staged_bytes: inputs in main memory for a device.
    logits_bytes: results in main memory.
    transfer_bytes: the part of device_bytes that is copied to the device.
    """

    device_bytes: int
    staged_bytes: int
    logits_bytes: int
    transfer_bytes: int


def scratch(shape: Shape, largest: Pass) -> Scratch:
    """Return the compute buffers of a model of this shape for its largest pass."""
    n_tokens = largest.n_tokens
    masks = _masks(shape, largest)
    n_outputs = largest.n_outputs if shape.has_head else 0
    # The input, and what its rows are read into.
    staged = _FLOAT * 2 * shape.width.n_embd * n_tokens
    moments = [
        _feed_forward(shape.width) * n_tokens,
        _mixture(shape.width, shape.experts) * n_tokens if shape.experts else 0,
        _attention(shape, largest),
        _recurrence(shape, largest),
        2 * shape.width.n_embd * n_tokens + n_outputs * shape.n_vocab,
    ]
    return Scratch(
        device_bytes=masks + _FLOAT * max(moments),
        staged_bytes=masks + staged,
        transfer_bytes=masks + staged // 2,
        logits_bytes=_FLOAT * largest.n_outputs * shape.n_vocab,
    )


def _masks(shape: Shape, largest: Pass) -> int:
    """Return the bytes of the attention masks: one for all cells, one for those of the window."""
    size = 2 if largest.flash_attention else 4
    n_cells = _n_seen(shape, largest) + largest.n_window_cells
    return size * n_cells * largest.n_tokens


def _n_seen(shape: Shape, largest: Pass) -> int:
    """Return the cells that a layer without a window attends to; 0 if there is no such layer."""
    sees = any(layer.kv_layout.key and not layer.kv_layout.window for layer in shape.layers)
    return largest.n_cells if sees or not shape.has_cache else 0


# ------------------------------------------------------- steps of a pass, in floats


def _feed_forward(width: Width) -> int:
    """Return the floats per token: inputs of graph, layer and feed-forward, and inner rows."""
    n_live = width.n_embd + max(width.n_embd, width.query if not width.latent else 0)
    if width.n_ff > 2 * width.n_embd:
        n_live += 2 * width.n_embd  # the allocator finds no free block that is large enough
    inner = 3 * width.n_ff if width.is_gated else width.n_ff
    return inner + n_live + width.streams


def _mixture(width: Width, experts: Experts) -> int:
    """Return the floats per token as `_feed_forward`, for all experts of a token and outputs."""
    n_embd, inner = width.n_embd, experts.n_used * experts.n_ff
    n_live = 3 * n_embd + max(n_embd, width.query if not width.latent else 0)
    if width.shares:
        n_live += n_embd
    outputs = experts.n_used * n_embd
    return 3 * inner + n_live + (outputs if outputs > 2 * inner else 0)


def _attention(shape: Shape, largest: Pass) -> int:
    width = shape.width
    keys = max((layer.kv_layout.key for layer in shape.layers), default=0)
    values = max((layer.kv_layout.value for layer in shape.layers), default=0)
    rows = 3 * width.n_embd + 2 * width.query + keys + values
    if width.latent:
        rows = 4 * width.n_embd + width.query + width.latent
    n_cells = max(_n_seen(shape, largest), largest.n_window_cells)
    if shape.has_bias:
        # For each pair of tokens: distance, bias, transposed bias, score.
        scores = (3 * shape.n_heads + 1) * n_cells
    else:
        scores = 0 if largest.flash_attention else shape.n_heads * n_cells
    return (rows + scores) * largest.n_tokens


def _recurrence(shape: Shape, largest: Pass) -> int:
    if not shape.width.mixer:
        return 0
    states = max(layer.kv_layout.state for layer in shape.layers) * largest.n_states
    return (shape.width.mixer + shape.width.n_embd) * largest.n_tokens + states
