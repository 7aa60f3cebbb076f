"""A model's memory: the estimate from its header, compared with llama.cpp's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.memory_table import MIB, WAYS, loaded_by, rows, simulate
from specd.core import EngineSpec
from specd.engine.llama import context
from specd.engine.llama.library import Buffer, BufferUse
from specd.engine.llama.native import memory_of
from specd.engine.speculative import controller
from specd.placement import MemoryCorrections, estimate
from specd.placement.memory_estimator import MemoryEstimator
from specd.store.shape import read_shape
from tests.gguf_adapters import write_lora
from tests.gguf_for_engines import DEMO, small_models

MODELS = (
    "demo",
    "llama",
    "qwen2vl",
    "mamba",
    "lfm2",
    "qwen35",
    "gemma3",
    "qwen35, heads",
    "lfm2, window",
    "bert",
    "t5encoder",
    "gemma3, mean",
    "llama, last",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, EngineSpec]:
    return dict(small_models(tmp_path_factory.mktemp("models")))


def test_every_small_model_is_compared_with_llama_cpp(models: Mapping[str, EngineSpec]) -> None:
    assert set(models) == set(MODELS)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.n_slots}x{way.n_ctx}")
@pytest.mark.parametrize("name", MODELS)
def test_the_estimate_is_what_llama_cpp_reports(
    name: str, way: EngineSpec, models: Mapping[str, EngineSpec]
) -> None:
    for row in rows(name, loaded_by(way, models[name])):
        for part, (estimated, measured) in row.parts.items():
            share, least = (0.05, 2 * MIB) if part in {"scratch", "all"} else (0.01, MIB // 8)
            assert abs(estimated - measured) <= max(share * measured, least), (row.name, part)


def test_an_adapter_is_a_part_of_the_weights(
    tmp_path: Path, models: Mapping[str, EngineSpec]
) -> None:
    spec = EngineSpec(weights=models["llama"].weights, n_ctx=512)
    (plain,) = rows("plain", spec)
    adapter = write_lora(tmp_path / "lora.gguf", Path(spec.weights), rank=64)
    (adapted,) = rows(
        "adapted", EngineSpec(weights=spec.weights, n_ctx=512, adapters=(str(adapter),))
    )
    assert adapted.measured.weights_bytes > plain.measured.weights_bytes
    estimated, measured = adapted.parts["weights"]
    assert abs(estimated - measured) <= 0.01 * measured + MIB // 8


def test_parts_of_the_memory_add_up() -> None:
    (row,) = rows("demo", EngineSpec(weights=str(DEMO / "target.gguf"), n_ctx=256))
    memory = row.measured
    parts = memory.weights_bytes + memory.cache_bytes + memory.scratch_bytes
    assert parts == memory.total_bytes == sum(n for _, n in memory.by_device)
    assert memory.by_device == (("CPU", memory.total_bytes),)


def test_buffers_are_reported_by_device() -> None:
    buffers = [
        Buffer("CUDA0", BufferUse.WEIGHTS, 100),
        Buffer("CUDA1", BufferUse.WEIGHTS, 80),
        Buffer("CPU_Mapped", BufferUse.WEIGHTS, 20),
        Buffer("CUDA0", BufferUse.CACHE, 7),
        Buffer("CUDA1", BufferUse.STATES, 5),
        Buffer("CUDA_Host", BufferUse.LOGITS, 3),
        Buffer("CUDA0", BufferUse.SCRATCH, 2),
        Buffer("CUDA0", BufferUse.EXTRAS, 1),
    ]
    memory = memory_of(buffers, model_bytes=200)
    assert memory.by_device == (("CUDA0", 110), ("CUDA1", 85), ("CPU", 23))
    assert (memory.device, memory.vram_bytes, memory.total_bytes) == ("CUDA0", 195, 218)
    assert (memory.weights_bytes, memory.cache_bytes, memory.scratch_bytes) == (201, 12, 5)


@pytest.mark.parametrize(
    "buffers, model_bytes, weights_bytes",
    [
        (
            [
                Buffer("CPU_Mapped", BufferUse.WEIGHTS, 90),
                Buffer("CPU_REPACK", BufferUse.WEIGHTS, 60),
            ],
            100,
            100,
        ),
        (
            [
                Buffer("CPU_Mapped", BufferUse.WEIGHTS, 30),
                Buffer("CPU_REPACK", BufferUse.WEIGHTS, 60),
            ],
            100,
            90,
        ),
        (
            [Buffer("CPU", BufferUse.WEIGHTS, 40), Buffer("CPU_REPACK", BufferUse.WEIGHTS, 70)],
            100,
            110,
        ),
    ],
    ids=["holes in the mapping", "no holes", "read, not mapped"],
)
def test_repacked_weights_count_once(
    buffers: list[Buffer], model_bytes: int, weights_bytes: int
) -> None:
    memory = memory_of(buffers, model_bytes)
    assert memory.weights_bytes == memory.total_bytes == weights_bytes


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.n_slots}x{way.n_ctx}")
@pytest.mark.parametrize("name", MODELS)
def test_the_bound_without_a_simulation_is_enough(
    name: str, way: EngineSpec, models: Mapping[str, EngineSpec]
) -> None:
    spec = loaded_by(way, models[name])
    estimator = MemoryEstimator(read_shape, MemoryCorrections(None))
    bounds = [bound for bound in estimator.of(spec) if bound is not None]
    estimator = MemoryEstimator(read_shape, MemoryCorrections(None), simulate)
    assert estimator.simulate([spec])
    for bound, simulated in zip(bounds, estimator.of(spec), strict=False):
        assert simulated is not None
        assert bound.total_bytes >= simulated.total_bytes - MIB // 8
        assert bound.on_device(-1) >= simulated.on_device(-1) - MIB // 8


def test_a_context_between_two_simulated_ones_is_interpolated(
    models: Mapping[str, EngineSpec],
) -> None:
    spec = replace(models["gemma3"], n_ctx=2048, n_threads=1)
    estimator = MemoryEstimator(read_shape, MemoryCorrections(None), simulate)
    assert estimator.simulate([spec])
    assert not estimator.simulate([spec, replace(spec, n_ctx=1500)])
    between = replace(spec, n_ctx=1792)
    exact = MemoryEstimator(read_shape, MemoryCorrections(None), simulate)
    assert exact.simulate([between])
    interpolated, measured = (each.of(between)[0].total_bytes for each in (estimator, exact))
    assert interpolated == pytest.approx(measured, rel=0.02)


def test_the_controllers_longest_draft_bounds_the_rows_of_logits() -> None:
    assert estimate.MAX_DRAFT == controller.MAX_DRAFT
    assert estimate.STATES_SHARE == context.SNAPSHOT_SHARE
