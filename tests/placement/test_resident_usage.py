"""Check the memory that resident engines hold according to their specs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specd.core import EngineSpec
from specd.placement.estimate import Block, Footprint
from specd.placement.layout import Layout
from specd.placement.resident_usage import ResidentUsage, layout_of, sum_resident_usage

MODEL = Footprint(
    blocks=tuple(Block(weights_bytes=100 * n, cache_bytes=n) for n in (1, 2, 3, 4)),
    input_bytes=5000,
    output_bytes=7000,
    extra_bytes=0,
    device_scratch_bytes=30,
    host_scratch_bytes=20,
)
PAIR = EngineSpec(weights="t", drafter="d", devices=("a",))


def held(*engines: EngineSpec) -> ResidentUsage:
    return sum_resident_usage(
        engines, lambda spec: (MODEL, MODEL if spec.drafter else None), gpus=True
    )


def test_layers_are_counted_on_the_device_that_has_them() -> None:
    spec = EngineSpec(weights="t", devices=("a", "b"), tensor_split=(3.0, 2.0))
    on_devices = held(spec).on_devices
    assert on_devices["a"] == 101 + 202 + 303 + 30
    assert on_devices["b"] == 404 + 7000 + 30


def test_a_layer_count_above_the_models_is_all_layers() -> None:
    assert layout_of(replace(PAIR, n_gpu_layers=999), 4) == Layout(layers=((0, 5),), drafter=0)


def test_every_engine_is_a_process_on_each_of_its_devices() -> None:
    found = held(PAIR, replace(PAIR, devices=("b", "a")), replace(PAIR, devices=()))
    assert found.n_engines == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "changed, mapped",
    [
        ({}, set()),
        ({"draft_on_cpu": True}, {"d"}),
        ({"devices": ()}, {"t", "d"}),
        ({"n_gpu_layers": 0, "draft_device": 0}, {"t"}),
        ({"devices": (), "use_mmap": False}, set()),
    ],
)
def test_a_file_on_a_gpu_is_not_shared_in_main_memory(
    changed: dict[str, object], mapped: set[str]
) -> None:
    assert held(replace(PAIR, **changed)).mapped == mapped  # type: ignore[arg-type]


def test_an_engine_that_does_not_map_its_files_shares_none() -> None:
    found = held(replace(PAIR, devices=()))
    assert found.mapped_weights(PAIR) == (True, True)
    assert found.mapped_weights(replace(PAIR, drafter="other")) == (True, False)
    assert found.mapped_weights(replace(PAIR, use_mmap=False)) == (False, False)
