"""How a small dense llama lies inside a large one without changing what it computes.

The residual stream keeps the small model's width; beyond it every layer reads and writes zeros, so
the weights that read the padding are free, and are noise.

Where a weight cannot be said in one of the large model's type, the large model holds the small one
several times over: every copy of the stream, of a head and of a column carries the same values, and
what reads them adds up a part of the weight from each (`blocks.parts`).
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
    """One weight of the large model and where the small one's lies in it: the upper left corner.

    Rows from `silent_rows` on must ignore the first `real_inputs` inputs: what they feed is
    multiplied by noise, or would leave the width that the small model takes.
    row_copies, column_copies: how often the small model's lies there, below and beside itself.
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
    """Gains of an RMS norm; without a source they only have to be finite.

    n_copies: of the stream that it lets through.
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
    """The part of the large model that is not padding: the small one, as often as it takes."""
    return small.copied(file_type.n_parts)


def plan(small: LlamaShape, large: LlamaShape, file_type: FileType) -> Iterator[Matrix | Norm]:
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
    # One copy is enough to read the answer from, and an embedding that is also the output sees
    # each of them with its whole weight.
    yield Norm("output_norm.weight", large.n_embd, "output_norm.weight", n_copies=1)
    if large.has_output:
        vocabulary = file_type.vocabulary
        name = "output.weight"
        yield Matrix(name, vocabulary, large.n_vocab, large.n_embd, source=name)


def _layer(
    prefix: str, small: LlamaShape, large: LlamaShape, file_type: FileType, *, is_real: bool
) -> Iterator[Matrix | Norm]:
    """A layer of the small model, or one that adds exactly zero to the residual stream.

    The extra heads' values and the extra columns' `up` are zero because they read padding alone,
    so all weights behind them are free.  Few weights are zero, none where a kernel could profit.
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

    # An identity layer has no real head and no real column: all its rows are extra ones.
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
    """Noise, silence where it must be, and the small model's weights.

    source: rows of Q8_0 as they lie in the small model's file.
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
    """The mean square is taken over more components, most of them zero: undo its shrinking.

    inner: what is `held`.
    """
    if source is None:
        padded = np.ones(norm.n_inputs, dtype=np.float32)
    else:
        padded = np.zeros(norm.n_inputs, dtype=np.float32)
        padded[: norm.n_copies * len(source)] = np.tile(source, norm.n_copies)
    return (padded * math.sqrt(inner.n_embd / norm.n_inputs)).astype(np.float32)
