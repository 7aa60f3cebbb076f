"""What passes need beside weights and cache, as llama.cpp lays it out.

Its graph is given one buffer, as large as what is alive at the worst moment of a pass.  Which one
that is depends on the shape of the model: here is what each of them takes.  Measured through
llama.cpp on models of forty architectures; one that is not known is taken for a plain transformer.
"""

from __future__ import annotations

from dataclasses import dataclass

from specd.store.shape import Experts, Shape, Width

_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The largest pass of an engine.

    n_tokens: rows.  n_cells: of the cache; n_window_cells: of the cache of layers with a window,
    0 without any.  n_outputs: rows of logits.  n_states: that are worked on at once.
    """

    n_tokens: int
    n_cells: int
    n_window_cells: int
    n_outputs: int
    n_states: int
    flash_attention: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """device_bytes: where the layers lie.  staged_bytes: what a device is handed, from main memory.

    handed_bytes: of device_bytes what comes from elsewhere.
    logits_bytes: where the results are read, in main memory.
    """

    device_bytes: int
    staged_bytes: int
    logits_bytes: int
    transfer_bytes: int


def scratch(shape: Shape, largest: Pass) -> Scratch:
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
    """Who may look at whom: one for all cells, and one for those of the window."""
    size = 2 if largest.flash_attention else 4
    n_cells = _n_seen(shape, largest) + largest.n_window_cells
    return size * n_cells * largest.n_tokens


def _n_seen(shape: Shape, largest: Pass) -> int:
    """Cells that a layer without a window looks at; 0 where there is none."""
    sees = any(layer.kv_layout.key and not layer.kv_layout.window for layer in shape.layers)
    return largest.n_cells if sees or not shape.has_cache else 0


# ------------------------------------------------------------------ moments, in numbers


def _feed_forward(width: Width) -> int:
    """The input of the graph, of the layer and of this part of it, and its inner rows."""
    kv_layout = width.n_embd + max(width.n_embd, width.query if not width.latent else 0)
    if width.n_ff > 2 * width.n_embd:
        kv_layout += 2 * width.n_embd  # no hole that is left over has room for what comes
    inner = 3 * width.n_ff if width.is_gated else width.n_ff
    return inner + kv_layout + width.streams


def _mixture(width: Width, experts: Experts) -> int:
    """As the above, for all experts of a token at once, and what each of them says."""
    n_embd, inner = width.n_embd, experts.n_used * experts.n_ff
    kv_layout = 3 * n_embd + max(n_embd, width.query if not width.latent else 0)
    if width.shares:
        kv_layout += n_embd
    said = experts.n_used * n_embd
    return 3 * inner + kv_layout + (said if said > 2 * inner else 0)


def _attention(shape: Shape, largest: Pass) -> int:
    width = shape.width
    keys = max((layer.kv_layout.key for layer in shape.layers), default=0)
    values = max((layer.kv_layout.value for layer in shape.layers), default=0)
    rows = 3 * width.n_embd + 2 * width.query + keys + values
    if width.latent:
        rows = 4 * width.n_embd + width.query + width.latent
    n_cells = max(_n_seen(shape, largest), largest.n_window_cells)
    if shape.has_bias:
        # Of each pair its distance, what that is worth, that in another order, and the score.
        scores = (3 * shape.n_heads + 1) * n_cells
    else:
        scores = 0 if largest.flash_attention else shape.n_heads * n_cells
    return (rows + scores) * largest.n_tokens


def _recurrence(shape: Shape, largest: Pass) -> int:
    if not shape.width.mixer:
        return 0
    states = max(layer.kv_layout.state for layer in shape.layers) * largest.n_states
    return (shape.width.mixer + shape.width.n_embd) * largest.n_tokens + states
