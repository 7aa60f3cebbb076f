"""Test the plan of a padded model: its size, and the place of the small model."""

from __future__ import annotations

import re
from math import prod

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench.padding import (
    LlamaShape,
    Matrix,
    Norm,
    fill_matrix,
    gains,
    padded_shape,
    plan,
    scaled,
)
from specd.bench.quantized_blocks import FileType, Noise
from tests.bench.test_quantized_blocks import values

DEMO = LlamaShape(
    n_embd=256, n_layers=6, n_ff=640, n_heads=4, n_kv_heads=4, head_dim=64, n_vocab=2048
)
#: Bytes per weight: of a block of 32 weights, over 32.
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
def test_the_size_of_a_target_follows_from_its_type(n_parameters: int, file_type: FileType) -> None:
    large = scaled(padded_shape(DEMO, file_type), n_parameters)
    entries = [*plan(DEMO, large, file_type)]
    assert sum(prod(entry.shape) for entry in entries) == large.n_parameters
    n_bytes = sum(entry.n_bytes for entry in entries)
    assert n_bytes == pytest.approx(n_parameters * BYTES_PER_WEIGHT[file_type], rel=0.02)
    of_type = sum(e.n_bytes for e in entries if isinstance(e, Matrix) and e.file_type is file_type)
    assert of_type > 0.985 * n_bytes


@pytest.mark.parametrize("n_parameters", SIZES)
def test_a_size_is_one_shape_in_every_type(n_parameters: int) -> None:
    """A size that fits one copy of the demo target also fits three."""
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


# --------------------------------------------------------------------------- computed values


@pytest.mark.parametrize("file_type", FileType)
def test_every_matrix_gives_the_small_models_values_and_zeros(
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
    """Return whether a matrix reads the residual stream; an added layer has no other inputs."""
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


# --------------------------------------------------------------------------- the shape


@st.composite
def shapes(draw: st.DrawFn) -> LlamaShape:
    head_dim = draw(st.sampled_from([8, 16, 32, 64, 128]))
    group = draw(st.sampled_from([1, 2, 4]))
    n_kv_heads = draw(st.sampled_from([4, 8]))
    return LlamaShape(
        n_embd=head_dim * group * n_kv_heads,
        n_layers=draw(st.integers(1, 8)),
        n_ff=32 * draw(st.integers(1, 40)),
        n_heads=group * n_kv_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_vocab=draw(st.sampled_from([300, 2048, 32000])),
        has_output=draw(st.booleans()),
    )


@given(shapes(), st.integers(1, 10_000_000_000))
def test_the_large_model_contains_the_small_one_in_whole_blocks(small: LlamaShape, n: int) -> None:
    large = scaled(small, n)
    assert large.n_embd >= small.n_embd
    assert large.n_ff >= small.n_ff
    assert large.n_layers >= small.n_layers
    assert large.n_kv_heads >= small.n_kv_heads
    assert large.n_embd % 32 == large.n_ff % 32 == large.n_heads * large.head_dim % 32 == 0


@given(shapes(), st.integers(1, 10_000_000_000))
def test_heads_keep_their_size_and_their_grouping(small: LlamaShape, n: int) -> None:
    large = scaled(small, n)
    assert large.head_dim == small.head_dim
    assert large.n_heads * small.n_kv_heads == small.n_heads * large.n_kv_heads


@given(st.integers(100_000_000, 20_000_000_000))
def test_the_demo_target_grows_to_the_size_asked_for(n: int) -> None:
    assert abs(scaled(DEMO, n).n_parameters - n) < 0.05 * n


@pytest.mark.parametrize(
    "n_parameters,n_embd,n_layers,label",
    [
        (
            500_000_000,
            1536,
            range(14, 25),
            "50.M",
        ),  # Qwen2.5 0.5B: 896 x 24, Llama 3.2 1B: 2048 x 16
        (10**9, 2048, range(16, 25), "1B"),  # TinyLlama: 2048 x 22
        (3 * 10**9, 2816, range(26, 37), "3B"),  # Llama 3.2 3B: 3072 x 28
        (8 * 10**9, 4096, range(32, 41), "8B"),  # Llama 3.1 8B: 4096 x 32
    ],
)
def test_each_size_has_the_proportions_of_its_family(
    n_parameters: int, n_embd: int, n_layers: range, label: str
) -> None:
    large = scaled(DEMO, n_parameters)
    assert large.n_embd == n_embd
    assert large.n_layers in n_layers
    assert 2.5 < large.n_ff / large.n_embd < 4
    assert large.n_heads * large.head_dim == large.n_embd
    assert large.n_embd % 256 == large.n_ff % 256 == 0
    assert abs(large.n_parameters - n_parameters) < 0.02 * n_parameters
    assert re.fullmatch(label, large.label)


def test_n_copies_of_a_model_are_n_times_as_wide() -> None:
    three = DEMO.copied(3)
    assert (three.n_embd, three.n_ff, three.n_heads, three.n_kv_heads) == (768, 1920, 12, 12)
    assert (three.n_layers, three.head_dim, three.n_vocab) == (6, 64, 2048)


def test_a_billion_parameters_look_like_a_model_of_that_size() -> None:
    large = scaled(DEMO, 10**9)
    assert (large.n_embd, large.n_heads, large.label) == (2048, 32, "1B")
    assert 16 <= large.n_layers <= 24


def test_the_parameters_of_the_demo_target_are_counted() -> None:
    assert DEMO.n_parameters == 5_049_600
