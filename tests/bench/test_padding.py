"""The plan of a large model: real sizes, and the small model's weights where they belong."""

from __future__ import annotations

from math import prod

import pytest

from specd.bench.blocks import FileType
from specd.bench.padding import Matrix, held, plan
from specd.bench.shape import scaled
from tests.bench.test_shape import DEMO

#: Bytes of a block of 32 weights, over 32.
BYTES_PER_WEIGHT = {FileType.Q8_0: 34 / 32, FileType.Q4_0: 18 / 32, FileType.F16: 2.0}
SIZES = [500_000_000, 10**9, 3 * 10**9, 8 * 10**9]


@pytest.mark.parametrize("file_type", FileType)
@pytest.mark.parametrize("n_parameters", SIZES)
def test_a_target_of_any_size_costs_what_its_type_costs(
    n_parameters: int, file_type: FileType
) -> None:
    large = scaled(held(DEMO, file_type), n_parameters)
    entries = [*plan(DEMO, large, file_type)]
    assert sum(prod(entry.shape) for entry in entries) == large.n_parameters
    n_bytes = sum(entry.n_bytes for entry in entries)
    assert n_bytes == pytest.approx(n_parameters * BYTES_PER_WEIGHT[file_type], rel=0.02)
    of_type = sum(e.n_bytes for e in entries if isinstance(e, Matrix) and e.file_type is file_type)
    assert of_type > 0.985 * n_bytes


@pytest.mark.parametrize("n_parameters", SIZES)
def test_a_size_is_one_shape_in_every_type(n_parameters: int) -> None:
    """Three copies of the demo target fit wherever one does."""
    assert len({scaled(held(DEMO, each), n_parameters) for each in FileType}) == 1


@pytest.mark.parametrize("file_type", FileType)
def test_no_tensor_is_too_large_to_be_held_at_once(file_type: FileType) -> None:
    large = scaled(held(DEMO, file_type), SIZES[-1])
    assert max(entry.n_bytes for entry in plan(DEMO, large, file_type)) < 100_000_000


@pytest.mark.parametrize("file_type", FileType)
def test_every_weight_of_the_small_model_is_planned_once(file_type: FileType) -> None:
    large = scaled(held(DEMO, file_type), SIZES[0])
    sources = [entry.source for entry in plan(DEMO, large, file_type) if entry.source]
    assert len(sources) == len(set(sources)) == 2 + 9 * DEMO.n_layers
