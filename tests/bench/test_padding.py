"""The plan of a large model: real sizes, and the small model's function where it belongs."""

from __future__ import annotations

from math import prod

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from specd.bench.llama_shape import LlamaShape, scaled
from specd.bench.padding import Matrix, Norm, fill_matrix, gains, padded_shape, plan
from specd.bench.quantized_blocks import FileType, Noise
from tests.bench.test_llama_shape import DEMO
from tests.bench.test_quantized_blocks import values

#: Bytes of a block of 32 weights, over 32.
BYTES_PER_WEIGHT = {FileType.Q8_0: 34 / 32, FileType.Q4_0: 18 / 32, FileType.F16: 2.0}
SMALL = LlamaShape(
    n_embd=64,
    n_layers=1,
    n_ff=96,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    n_vocab=50,
    has_output=True,
)
SIZES = [500_000_000, 10**9, 3 * 10**9, 8 * 10**9]


@pytest.mark.parametrize("file_type", FileType)
@pytest.mark.parametrize("n_parameters", SIZES)
def test_a_target_of_any_size_costs_what_its_type_costs(
    n_parameters: int, file_type: FileType
) -> None:
    large = scaled(padded_shape(DEMO, file_type), n_parameters)
    entries = [*plan(DEMO, large, file_type)]
    assert sum(prod(entry.shape) for entry in entries) == large.n_parameters
    n_bytes = sum(entry.n_bytes for entry in entries)
    assert n_bytes == pytest.approx(n_parameters * BYTES_PER_WEIGHT[file_type], rel=0.02)
    of_type = sum(e.n_bytes for e in entries if isinstance(e, Matrix) and e.file_type is file_type)
    assert of_type > 0.985 * n_bytes


@pytest.mark.parametrize("n_parameters", SIZES)
def test_a_size_is_one_shape_in_every_type(n_parameters: int) -> None:
    """Three copies of the demo target fit wherever one does."""
    assert len({scaled(padded_shape(DEMO, each), n_parameters) for each in FileType}) == 1


@pytest.mark.parametrize("file_type", FileType)
def test_no_tensor_is_too_large_to_be_held_at_once(file_type: FileType) -> None:
    large = scaled(padded_shape(DEMO, file_type), SIZES[-1])
    assert max(entry.n_bytes for entry in plan(DEMO, large, file_type)) < 100_000_000


@pytest.mark.parametrize("file_type", FileType)
def test_every_weight_of_the_small_model_is_planned_once(file_type: FileType) -> None:
    large = scaled(padded_shape(DEMO, file_type), SIZES[0])
    sources = [entry.source for entry in plan(DEMO, large, file_type) if entry.source]
    assert len(sources) == len(set(sources)) == 2 + 9 * DEMO.n_layers


# --------------------------------------------------------------------------- what it computes


@pytest.mark.parametrize("file_type", FileType)
def test_what_every_matrix_makes_of_the_small_models_values_is_those_and_zeros(
    file_type: FileType,
) -> None:
    """Copies in, copies out; what noise multiplies, and what leaves the held width, is zero."""
    large = scaled(padded_shape(SMALL, file_type), 3_000_000)
    assert large.n_layers > SMALL.n_layers
    random, noise = np.random.default_rng(0), Noise(file_type)
    for matrix in plan(SMALL, large, file_type):
        if not isinstance(matrix, Matrix) or not matrix.name.startswith("blk."):
            continue
        n_rows, n_inputs = small_size(matrix.name)
        source = quantised(random.normal(0, 0.2, (n_rows, n_inputs))) if matrix.source else None
        weights = values(fill_matrix(matrix, noise, source), file_type)
        given = random.normal(0, 1, n_inputs if takes_stream(matrix.name) or matrix.source else 0)
        heard = padded(np.tile(given, file_type.n_parts), matrix.n_inputs)
        said = weights @ heard
        n_real = 0
        if source is not None:
            wanted = np.tile(values_of_small(source) @ given, file_type.n_parts)
            n_real = len(wanted)
            assert said[:n_real] == pytest.approx(wanted, abs=5e-3)
        if not matrix.name.endswith(("attn_q.weight", "attn_k.weight", "ffn_gate.weight")):
            assert (said[n_real:] == 0).all(), matrix.name


@pytest.mark.parametrize("file_type", FileType)
def test_the_vocabulary_is_looked_up_in_every_copy_and_read_from_one(file_type: FileType) -> None:
    large = scaled(padded_shape(SMALL, file_type), 3_000_000)
    embedding, *_, norm, output = plan(SMALL, large, file_type)
    assert isinstance(embedding, Matrix)
    assert isinstance(output, Matrix)
    assert isinstance(norm, Norm)
    source = quantised(np.random.default_rng(0).normal(0, 1, (SMALL.n_vocab, SMALL.n_embd)))
    rows = values_of_small(source)
    looked_up, read = (
        values(fill_matrix(each, Noise(each.file_type), source), each.file_type)
        for each in (embedding, output)
    )
    n_copies = file_type.n_parts
    copies = padded(np.tile(rows, n_copies), large.n_embd)
    assert looked_up == pytest.approx(copies, rel=1e-3)
    gain = gains(norm, np.ones(SMALL.n_embd, np.float32), padded_shape(SMALL, file_type))
    # As an RMS norm takes them, whichever copies it lets through.
    stream = copies / np.sqrt(np.square(copies).mean(axis=1, keepdims=True)) * gain
    wanted = rows / np.sqrt(np.square(rows).mean(axis=1, keepdims=True)) @ rows.T
    for weights in (read, looked_up):
        assert stream @ weights.T == pytest.approx(wanted, rel=1e-2, abs=0.05)


def small_size(name: str) -> tuple[int, int]:
    d, q, kv, ff = SMALL.n_embd, 64, 32, SMALL.n_ff
    sizes = {"attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q)}
    sizes |= {"ffn_gate": (ff, d), "ffn_up": (ff, d), "ffn_down": (d, ff)}
    return sizes[name.split(".")[2]]


def takes_stream(name: str) -> bool:
    """The other two take heads and columns, which an added layer has none of."""
    return not name.endswith(("attn_output.weight", "ffn_down.weight"))


def quantised(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    blocks: npt.NDArray[np.uint8] = gguf.quants.quantize(weights.astype(np.float32), q8_0)
    return blocks


def values_of_small(source: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return values(source.reshape(len(source), -1, 34), FileType.Q8_0)


def padded(rows: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    room = np.zeros((*rows.shape[:-1], width))
    room[..., : rows.shape[-1]] = rows
    return room
