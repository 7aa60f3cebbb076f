"""The layout of a small dense Llama inside a large one that computes the same.

The residual stream keeps the small model's width.  Beyond it every layer reads and writes zeros, so
the weights that read the padding may have any value, and are noise.

Some types cannot hold a weight of the small model in one weight.  The large model then contains the
small one several times: each copy of the stream, of a head and of a column carries the same values,
and what reads them adds up a part of the weight from each (`quantized_blocks.parts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specd.bench.quantized_blocks import BLOCK, Blocks, FileType, Noise, parts

# Proportions of the families of that size: Llama 3.2 1B, TinyLlama, Qwen3 have widths of 64 to
# 128 times their depth and feed-forward layers of 2.7 to 4 times their width.
_WIDTH_PER_LAYER = 100
_FF_PER_WIDTH = 2.75
_WIDE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """The dimensions of a dense Llama.

    has_output: whether the output matrix is separate from the embedding.
    """

    n_embd: int
    n_layers: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    has_output: bool = False

    @classmethod
    def empty(cls, like: LlamaShape) -> LlamaShape:
        """Return the shape without heads and feed-forward columns."""
        return replace(like, n_ff=0, n_heads=0, n_kv_heads=0)

    def copied(self, n: int) -> LlamaShape:
        """Return the shape with n times the embedding, heads and feed-forward columns."""
        return replace(
            self,
            n_embd=n * self.n_embd,
            n_ff=n * self.n_ff,
            n_heads=n * self.n_heads,
            n_kv_heads=n * self.n_kv_heads,
        )

    @property
    def n_parameters(self) -> int:
        attention = 2 * (self.n_heads + self.n_kv_heads) * self.head_dim * self.n_embd
        layer = attention + 3 * self.n_ff * self.n_embd + 2 * self.n_embd
        vocabulary = self.n_vocab * self.n_embd * (1 + self.has_output)
        return vocabulary + self.n_layers * layer + self.n_embd

    @property
    def label(self) -> str:
        """The number of parameters as in model names: 30M, 1.1B."""
        n = self.n_parameters
        return f"{n / 1e9:.2g}B" if n >= 1e9 or round(n / 1e6) >= 1000 else f"{n / 1e6:.0f}M"


def scaled(small: LlamaShape, n_parameters: int) -> LlamaShape:
    """Return the shape nearest to `n_parameters` that contains `small`, proportioned as a real one.

    Heads keep their size and grouping.  Every row is a whole number of Q8_0 blocks.
    """
    group = small.n_heads // small.n_kv_heads
    step = math.lcm(small.head_dim * group, BLOCK)
    kv_share = 2 * (1 + 1 / group)
    per_cube = (kv_share + 3 * _FF_PER_WIDTH) / _WIDTH_PER_LAYER
    wanted_width = (n_parameters / per_cube) ** (1 / 3)
    if wanted_width >= 4 * _WIDE:
        step = math.lcm(step, _WIDE)
    n_embd = max(_nearest(wanted_width, step), _at_least(small.n_embd, step))
    n_heads = max(n_embd // small.head_dim, small.n_heads)
    base = replace(
        small,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_heads // group,
        n_ff=max(_nearest(_FF_PER_WIDTH * n_embd, BLOCK), small.n_ff),
    )
    one_layer = replace(base, n_layers=1).n_parameters - replace(base, n_layers=0).n_parameters
    rest = n_parameters - replace(base, n_layers=0).n_parameters
    deep = replace(base, n_layers=max(round(rest / one_layer), small.n_layers))
    # What rounding the depth has left over goes into the feed-forward layers.
    without_ff = replace(deep, n_ff=0).n_parameters
    n_ff = (n_parameters - without_ff) / (3 * n_embd * deep.n_layers)
    ff_step = _WIDE if n_ff >= 4 * _WIDE else BLOCK
    return replace(deep, n_ff=max(_nearest(n_ff, ff_step), _at_least(small.n_ff, BLOCK)))


def _nearest(value: float, step: int) -> int:
    return max(round(value / step), 1) * step


def _at_least(value: int, step: int) -> int:
    return -(-value // step) * step


# --------------------------------------------------------------------------- tensors


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix of the large model, with the small model's matrix in its upper left corner.

    source: the small model's matrix, None for noise alone.
    Rows from `silent_rows` on ignore the first `real_inputs` inputs: what they feed is multiplied
    by noise, or lies outside the small model's width.
    row_copies, column_copies: copies of the small model's matrix, below and beside each other.
    """

    name: str
    file_type: FileType
    n_rows: int
    n_inputs: int
    source: str | None = None
    silent_rows: int | None = None
    real_inputs: int = 0
    row_copies: int = 1
    column_copies: int = 1
    padding_is_zero: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n_rows, self.n_inputs)

    @property
    def n_bytes(self) -> int:
        return self.n_rows * self.n_inputs // BLOCK * self.file_type.block_bytes


@dataclass(frozen=True, slots=True)
class Norm:
    """The gains of an RMS norm; without a source any finite gains will do.

    n_copies: copies of the residual stream that pass through it.
    """

    name: str
    n_inputs: int
    source: str | None = None
    n_copies: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n_inputs,)

    @property
    def n_bytes(self) -> int:
        return 4 * self.n_inputs


def padded_shape(small: LlamaShape, file_type: FileType) -> LlamaShape:
    """Return the shape of the part that is not padding: all copies of the small model."""
    return small.copied(file_type.n_parts)


def plan(small: LlamaShape, large: LlamaShape, file_type: FileType) -> Iterator[Matrix | Norm]:
    """Yield the tensors of the large model in file order."""
    n_copies = file_type.n_parts
    yield Matrix(
        "token_embd.weight",
        file_type.vocabulary,
        large.n_vocab,
        large.n_embd,
        source="token_embd.weight",
        column_copies=n_copies,
        padding_is_zero=True,
    )
    for layer in range(large.n_layers):
        is_real = layer < small.n_layers
        yield from _layer(f"blk.{layer}.", small, large, file_type, is_real=is_real)
    # One copy of the stream is enough for the output.
    yield Norm("output_norm.weight", large.n_embd, "output_norm.weight", n_copies=1)
    if large.has_output:
        vocabulary = file_type.vocabulary
        name = "output.weight"
        yield Matrix(name, vocabulary, large.n_vocab, large.n_embd, source=name)


def _layer(
    prefix: str, small: LlamaShape, large: LlamaShape, file_type: FileType, *, is_real: bool
) -> Iterator[Matrix | Norm]:
    """Yield the tensors of a real layer, or of one that adds exactly 0 to the residual stream.

    Extra heads and columns read only padding, so their values are 0 and the weights behind them
    may be noise.  Few weights are zero, so that no kernel runs faster than on a real model.
    """
    n_copies = file_type.n_parts

    def matrix(
        name: str, n_rows: int, n_inputs: int, silent_rows: int | None, real_inputs: int
    ) -> Matrix:
        name = f"{prefix}{name}.weight"
        source = name if is_real else None
        return Matrix(name, file_type, n_rows, n_inputs, source, silent_rows, real_inputs, n_copies)

    def norm(name: str) -> Norm:
        name = f"{prefix}{name}.weight"
        return Norm(name, large.n_embd, name if is_real else None, n_copies)

    # An identity layer has no real head and column: all its rows are extra ones.
    inner = padded_shape(small, file_type)
    real = inner if is_real else LlamaShape.empty(inner)
    q_width, kv_width = large.n_heads * large.head_dim, large.n_kv_heads * large.head_dim
    real_q, real_kv = real.n_heads * real.head_dim, real.n_kv_heads * real.head_dim
    d = inner.n_embd
    yield norm("attn_norm")
    yield matrix("attn_q", q_width, large.n_embd, None, 0)
    yield matrix("attn_k", kv_width, large.n_embd, None, 0)
    yield matrix("attn_v", kv_width, large.n_embd, real_kv, d)
    yield matrix("attn_output", large.n_embd, q_width, d, real_q)
    yield norm("ffn_norm")
    yield matrix("ffn_gate", large.n_ff, large.n_embd, None, 0)
    yield matrix("ffn_up", large.n_ff, large.n_embd, real.n_ff, d)
    yield matrix("ffn_down", large.n_embd, large.n_ff, d, real.n_ff)


def fill_matrix(matrix: Matrix, noise: Noise, source: npt.NDArray[np.uint8] | None) -> Blocks:
    """Return the blocks of a matrix: noise, zeros in silent rows and the small model's weights.

    source: rows of Q8_0 as stored in the small model's file.
    """
    n_blocks, n_bytes = matrix.n_inputs // BLOCK, matrix.file_type.block_bytes
    if matrix.padding_is_zero:
        data: Blocks = np.zeros((matrix.n_rows, n_blocks, n_bytes), dtype=np.uint8)
    else:
        data = noise.take(matrix.n_rows, n_blocks)
    if matrix.silent_rows is not None:
        data[matrix.silent_rows :, : matrix.real_inputs // BLOCK] = 0
    if source is not None:
        blocks = source.reshape(source.shape[0], -1, FileType.Q8_0.block_bytes)
        row = np.concatenate(parts(blocks, matrix.file_type) * matrix.column_copies, axis=1)
        rows = np.concatenate([row] * matrix.row_copies)
        data[: rows.shape[0], : rows.shape[1]] = rows
    return data


def gains(
    norm: Norm, source: npt.NDArray[np.float32] | None, inner: LlamaShape
) -> npt.NDArray[np.float32]:
    """Return the gains, scaled for a mean square over more components, most of them zero.

    source: gains in the small model.  inner: the result of `padded_shape`.
    """
    if source is None:
        padded = np.ones(norm.n_inputs, dtype=np.float32)
    else:
        padded = np.zeros(norm.n_inputs, dtype=np.float32)
        padded[: norm.n_copies * len(source)] = np.tile(source, norm.n_copies)
    return (padded * math.sqrt(inner.n_embd / norm.n_inputs)).astype(np.float32)
