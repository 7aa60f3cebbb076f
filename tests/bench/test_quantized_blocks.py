"""Test the parts of quantized weights, and the reproducible noise."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from specd.bench.quantized_blocks import BLOCK, Blocks, FileType, Noise, parts

#: The scales of a model: normal 16-bit floats, far from the largest.
SCALES = st.floats(-64, 64, width=16).filter(lambda x: abs(x) > 1e-4)


def q8_0(scales: npt.NDArray[np.float16], weights: npt.NDArray[np.int8]) -> Blocks:
    """Return blocks [rows, blocks, 34] from scales [rows, blocks, 1] and weights [rows, blocks,
    32].
    """
    return np.concatenate([scales.view(np.uint8), weights.view(np.uint8)], axis=-1)


def values(blocks: Blocks, file_type: FileType) -> npt.NDArray[np.float64]:
    """Return the weights as the gguf package's reference decoder reads them."""
    rows = blocks.reshape(blocks.shape[0], -1)
    if file_type is FileType.F16:
        return rows.view(np.float16).astype(np.float64)
    decoded: npt.NDArray[np.float32] = gguf.quants.dequantize(rows, file_type.ggml)
    return decoded.astype(np.float64)


@st.composite
def blocks_of_q8_0(draw: st.DrawFn) -> Blocks:
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    scales = draw(arrays.arrays(np.float16, (*shape, 1), elements=SCALES))
    weights = draw(arrays.arrays(np.int8, (*shape, BLOCK)))
    return q8_0(scales, weights)


@given(blocks_of_q8_0())
def test_three_parts_of_four_bits_are_exactly_one_of_eight(source: Blocks) -> None:
    pieces = parts(source, FileType.Q4_0)
    assert len(pieces) == FileType.Q4_0.n_parts
    total = sum(values(piece, FileType.Q4_0) for piece in pieces)
    assert np.array_equal(total, values(source, FileType.Q8_0))


def test_every_weight_of_eight_bits_has_its_parts() -> None:
    """Both ends in one block: two parts would not do."""
    weights = np.arange(-128, 128, dtype=np.int16).astype(np.int8).reshape(8, 1, BLOCK)
    source = q8_0(np.full((8, 1, 1), 0.01, np.float16), weights)
    total = sum(values(piece, FileType.Q4_0) for piece in parts(source, FileType.Q4_0))
    assert np.array_equal(total, values(source, FileType.Q8_0))


@given(blocks_of_q8_0())
def test_f16_rounds_a_weight_to_eleven_bits(source: Blocks) -> None:
    (piece,) = parts(source, FileType.F16)
    exact, rounded = values(source, FileType.Q8_0), values(piece, FileType.F16)
    assert (np.abs(rounded - exact) <= np.abs(exact) * 2.0**-11).all()


def test_q8_0_is_itself() -> None:
    source = q8_0(np.ones((1, 1, 1), np.float16), np.arange(BLOCK, dtype=np.int8)[None, None])
    (piece,) = parts(source, FileType.Q8_0)
    assert (piece == source).all()


@pytest.mark.parametrize("file_type", FileType)
def test_noise_is_small_finite_and_the_same_in_every_run(file_type: FileType) -> None:
    first, second = (Noise(file_type).take(64, 8) for _ in range(2))
    assert (first == second).all()
    assert first.shape == (64, 8, file_type.block_bytes)
    weights = values(first, file_type)
    assert 0.015 < weights.std() < 0.025
    assert np.abs(weights).max() < 0.2


@pytest.mark.parametrize("file_type", FileType)
def test_noise_continues_and_no_row_repeats_another(file_type: FileType) -> None:
    whole, pieces = Noise(file_type), Noise(file_type)
    rows = whole.take(5000, 32)  # longer than the period of the stream
    taken = [pieces.take(n, 32) for n in (1, 999, 4000)]
    assert (np.concatenate(taken) == rows).all()
    flat = rows.reshape(len(rows), -1)
    assert len(np.unique(flat, axis=0)) == len(flat)
