"""How a small dense llama lies inside a large one without changing what it computes.

The residual stream keeps the small model's width; beyond it every layer reads and writes zeros, so
the weights that read the padding are free, and are noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from specd.bench.shape import Shape

_BLOCK = 32
_BLOCK_BYTES = 34
#: A prime number of Q8_0 blocks, so that no two rows of a matrix repeat each other.
_N_NOISE_BLOCKS = 65_521
_NOISE_DEVIATION = 0.02

#: Q8_0 as it lies in the file: [rows, blocks per row, 34] bytes.
Blocks = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One weight of the large model and where the small one's lies in it: the upper left corner.

    Rows from `silent_rows` on must ignore the first `real_inputs` inputs: what they feed is
    multiplied by noise, or would leave the small model's width.
    """

    name: str
    n_rows: int
    n_inputs: int
    source: str | None = None
    silent_rows: int | None = None
    real_inputs: int = 0
    padding_is_zero: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n_rows, self.n_inputs)

    @property
    def n_bytes(self) -> int:
        return self.n_rows * self.n_inputs // _BLOCK * _BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Norm:
    """Gains of an RMS norm; without a source they only have to be finite."""

    name: str
    n_inputs: int
    source: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n_inputs,)

    @property
    def n_bytes(self) -> int:
        return 4 * self.n_inputs


class Noise:
    """An endless stream of random Q8_0 blocks, the same in every run."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).normal(0.0, _NOISE_DEVIATION, _N_NOISE_BLOCKS * _BLOCK)
        quantised = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
        self._blocks: Blocks = quantised.reshape(_N_NOISE_BLOCKS, _BLOCK_BYTES)
        self._next = 0

    def take(self, n_rows: int, n_blocks: int) -> Blocks:
        n = n_rows * n_blocks
        index = (self._next + np.arange(n)) % _N_NOISE_BLOCKS
        self._next = (self._next + n) % _N_NOISE_BLOCKS
        return self._blocks[index].reshape(n_rows, n_blocks, _BLOCK_BYTES)


def plan(small: Shape, large: Shape) -> Iterator[Matrix | Norm]:
    yield Matrix(
        "token_embd.weight",
        large.n_vocab,
        large.n_embd,
        source="token_embd.weight",
        padding_is_zero=True,
    )
    for layer in range(large.n_layers):
        yield from _layer(f"blk.{layer}.", small, large, is_real=layer < small.n_layers)
    yield Norm("output_norm.weight", large.n_embd, "output_norm.weight")
    if large.has_output:
        yield Matrix("output.weight", large.n_vocab, large.n_embd, source="output.weight")


def _layer(prefix: str, small: Shape, large: Shape, *, is_real: bool) -> Iterator[Matrix | Norm]:
    """A layer of the small model, or one that adds exactly zero to the residual stream.

    The extra heads' values and the extra columns' `up` are zero because they read padding alone,
    so all weights behind them are free.  Few weights are zero, none where a kernel could profit.
    """

    def matrix(
        name: str, n_rows: int, n_inputs: int, silent_rows: int | None, real_inputs: int
    ) -> Matrix:
        name = f"{prefix}{name}.weight"
        source = name if is_real else None
        return Matrix(name, n_rows, n_inputs, source, silent_rows, real_inputs)

    def norm(name: str) -> Norm:
        name = f"{prefix}{name}.weight"
        return Norm(name, large.n_embd, name if is_real else None)

    # An identity layer has no real head and no real column: all its rows are extra ones.
    real = small if is_real else Shape.empty(small)
    q_width, kv_width = large.n_heads * large.head_dim, large.n_kv_heads * large.head_dim
    real_q, real_kv = real.n_heads * real.head_dim, real.n_kv_heads * real.head_dim
    d = small.n_embd
    yield norm("attn_norm")
    yield matrix("attn_q", q_width, large.n_embd, None, 0)
    yield matrix("attn_k", kv_width, large.n_embd, None, 0)
    yield matrix("attn_v", kv_width, large.n_embd, real_kv, d)
    yield matrix("attn_output", large.n_embd, q_width, d, real_q)
    yield norm("ffn_norm")
    yield matrix("ffn_gate", large.n_ff, large.n_embd, None, 0)
    yield matrix("ffn_up", large.n_ff, large.n_embd, real.n_ff, d)
    yield matrix("ffn_down", large.n_embd, large.n_ff, d, real.n_ff)


def filled(matrix: Matrix, noise: Noise, source: npt.NDArray[np.uint8] | None) -> Blocks:
    """Noise, silence where it must be, and the small model's blocks bit for bit."""
    n_blocks = matrix.n_inputs // _BLOCK
    if matrix.padding_is_zero:
        data: Blocks = np.zeros((matrix.n_rows, n_blocks, _BLOCK_BYTES), dtype=np.uint8)
    else:
        data = noise.take(matrix.n_rows, n_blocks)
    if matrix.silent_rows is not None:
        data[matrix.silent_rows :, : matrix.real_inputs // _BLOCK] = 0
    if source is not None:
        blocks = source.reshape(source.shape[0], -1, _BLOCK_BYTES)
        data[: blocks.shape[0], : blocks.shape[1]] = blocks
    return data


def gains(
    source: npt.NDArray[np.float32] | None, small: Shape, large: Shape
) -> npt.NDArray[np.float32]:
    """The mean square is taken over more components, all new ones zero: undo its shrinking."""
    padded = np.ones(large.n_embd, dtype=np.float32)
    if source is not None:
        padded[: small.n_embd] = source
    return (padded * math.sqrt(small.n_embd / large.n_embd)).astype(np.float32)
