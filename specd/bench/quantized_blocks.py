"""Weights as a GGUF stores them: rows of blocks of 32 weights, in three types."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

#: Weights per block.  F16 has no blocks; it is counted in these too.
BLOCK = 32
#: A prime number, so that no two rows of a matrix are equal.
_N_NOISE_BLOCKS = 65_521
_NOISE_DEVIATION = 0.02

#: Stored weights: [rows, blocks per row, bytes per block].
Blocks = npt.NDArray[np.uint8]


class FileType(StrEnum):
    """The type of a padded model's large matrices."""

    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    F16 = "F16"

    @property
    def ggml(self) -> Any:
        return gguf.GGMLQuantizationType[self.value]

    @property
    def file_type(self) -> int:
        """The number under general.file_type."""
        return int(gguf.LlamaFileType[f"MOSTLY_{self.value}"])

    @property
    def block_bytes(self) -> int:
        n_weights, n_bytes = gguf.GGML_QUANT_SIZES[self.ggml]
        return BLOCK // int(n_weights) * int(n_bytes)

    @property
    def n_parts(self) -> int:
        """The number of weights of this type whose sum is one of Q8_0 (see `parts`)."""
        return 3 if self is FileType.Q4_0 else 1

    @property
    def vocabulary(self) -> FileType:
        """The type of embedding and output; their rows cannot be sums of parts."""
        return FileType.Q8_0 if self is FileType.Q4_0 else self


def parts(source: Blocks, file_type: FileType) -> list[Blocks]:
    """Return blocks of `file_type` whose sum is the weights of these Q8_0 blocks.

    Exact in Q8_0 and Q4_0; F16 rounds a product of 18 bits to 11, a relative error under 2⁻¹¹.
    """
    if file_type is FileType.Q8_0:
        return [source]
    scales, weights = source[..., :2].view(np.float16), source[..., 2:].view(np.int8)
    if file_type is FileType.F16:
        values = scales.astype(np.float32) * weights
        return [values.astype(np.float16).view(np.uint8)]
    # w = 16 high + middle - low, each from -8 to 7, the range of four bits.
    high = np.clip(np.rint(weights / 16), -8, 7).astype(np.int16)
    rest = weights - 16 * high
    middle = np.clip(rest, -8, 7)
    return [
        _q4_0(np.float16(16) * scales, high),
        _q4_0(scales, middle),
        _q4_0(-scales, middle - rest),
    ]


def _q4_0(scales: npt.NDArray[np.float16], weights: npt.NDArray[np.int16]) -> Blocks:
    nibbles = (weights + 8).astype(np.uint8)
    packed = nibbles[..., : BLOCK // 2] | nibbles[..., BLOCK // 2 :] << 4
    return np.concatenate([scales.view(np.uint8), packed], axis=-1)


class Noise:
    """An endless stream of random blocks, the same in every run."""

    def __init__(self, file_type: FileType) -> None:
        values = np.random.default_rng(0).normal(0.0, _NOISE_DEVIATION, _N_NOISE_BLOCKS * BLOCK)
        encoded = gguf.quants.quantize(values.astype(np.float32), file_type.ggml)
        self._table: Blocks = encoded.view(np.uint8).reshape(_N_NOISE_BLOCKS, -1)
        self._next = 0

    def take(self, n_rows: int, n_blocks: int) -> Blocks:
        """Return the next blocks, [n_rows, n_blocks, bytes per block], owned by the caller."""
        n = n_rows * n_blocks
        data = np.empty((n, self._table.shape[1]), dtype=np.uint8)
        n_done = 0
        # Copy whole runs of the table: block by block would be slower than a disk.
        while n_done < n:
            run = self._table[self._next :][: n - n_done]
            data[n_done : n_done + len(run)] = run
            n_done += len(run)
            self._next = (self._next + len(run)) % len(self._table)
        return data.reshape(n_rows, n_blocks, -1)
