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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specd.bench.llama_shape import LlamaShape
from specd.bench.quantized_blocks import BLOCK, Blocks, FileType, Noise, parts


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
