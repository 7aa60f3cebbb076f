"""What a model is thought to take, and whether that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd import core
from specd.errors import StoreError
from specd.placement import Cpu, Device, Fit
from specd.placement.defaults import GIB
from specd.placement.estimate import Weights, engine_bytes
from specd.store.facts import GgufFacts, read_facts
from tests.gguf_files import SHAPE, write_llama, write_mamba

TARGET = Weights(n_bytes=1000, n_cached=64)
DRAFTER = Weights(n_bytes=100, n_cached=32)
SPEC = core.EngineSpec(weights="w", n_ctx=10, n_slots=2)


@pytest.mark.contract("sched.memory")
def test_weights_and_caches_of_both_models_count() -> None:
    assert engine_bytes(SPEC, TARGET) == 1000 + 10 * 2 * 64 * 2
    assert engine_bytes(SPEC, TARGET, DRAFTER, others_bytes=7) == 1107 + 10 * 2 * 96 * 2


@pytest.mark.contract("sched.memory", "env.kv-cache")
@pytest.mark.parametrize("kind, n_bytes", [("f32", 4), ("bf16", 2), ("q8_0", 34 / 32)])
def test_a_cache_of_smaller_numbers_is_smaller(kind: str, n_bytes: float) -> None:
    spec = replace(SPEC, kv_cache_type=kind)
    assert engine_bytes(spec, TARGET) == 1000 + 10 * 2 * 64 * n_bytes


@pytest.mark.contract("sched.memory")
@pytest.mark.parametrize("n_batch, gib", [(512, 0), (1024, 0.75), (2047, 0.75), (2048, 2)])
def test_large_batches_need_scratch(n_batch: int, gib: float) -> None:
    assert engine_bytes(replace(SPEC, n_ctx=0, n_batch=n_batch), TARGET) == 1000 + gib * GIB


@given(st.integers(1, 2**20), st.integers(1, 256), st.sampled_from(core.KV_CACHE_TYPES))
def test_more_of_anything_never_takes_less(n_ctx: int, n_slots: int, kind: str) -> None:
    spec = replace(SPEC, n_ctx=n_ctx, n_slots=n_slots, kv_cache_type=kind)
    taken = engine_bytes(spec, TARGET)
    assert taken <= engine_bytes(replace(spec, n_ctx=n_ctx + 1), TARGET)
    assert taken <= engine_bytes(replace(spec, n_slots=n_slots + 1), TARGET)
    assert taken < engine_bytes(spec, TARGET, DRAFTER)


@pytest.mark.contract("sched.memory")
def test_a_gguf_says_what_attention_keeps_of_a_token(tmp_path: Path) -> None:
    llama = read_facts(write_llama(tmp_path / "a.gguf"))
    assert llama.n_cached == 2 * SHAPE.n_layer * SHAPE.n_embd
    longer = {"llama.attention.key_length": 24, "llama.attention.value_length": 16}
    wide = read_facts(write_llama(tmp_path / "b.gguf", extra=longer))
    assert wide.n_cached == SHAPE.n_layer * SHAPE.n_head * (24 + 16)
    assert read_facts(write_mamba(tmp_path / "c.gguf")).n_cached == 0


# --------------------------------------------------------------------------- what is free


def facts(path: Path) -> GgufFacts:
    raise StoreError(f"{path} is damaged")


def gpu(index: int, free: int) -> Device:
    return Device(
        vendor="v", index=index, name="n", uuid="u", total_bytes=10 * free, free_bytes=free
    )


def fit(available: int = 0, total: int = 10_000, devices: Sequence[Device] = ()) -> Fit:
    """Files that tell nothing take as many bytes as they have."""
    cpu = Cpu(total_bytes=total, available_bytes=available, n_cores=1)
    return Fit(facts=facts, devices=lambda: devices, cpu=lambda: cpu)


@pytest.fixture
def spec(tmp_path: Path) -> core.EngineSpec:
    """500 bytes of target, 200 of drafter, 100 of projector and adapter each."""
    for name, n_bytes in (("w", 500), ("d", 200), ("p", 100), ("a", 100)):
        (tmp_path / name).write_bytes(bytes(n_bytes))
    weights, drafter, projector, adapter = (str(tmp_path / name) for name in "wdpa")
    return core.EngineSpec(
        weights=weights, drafter=drafter, projector=projector, adapters=(adapter,)
    )


@pytest.mark.contract("sched.memory")
def test_four_fifths_of_what_is_free_may_be_taken(spec: core.EngineSpec) -> None:
    assert fit().bytes_of(spec) == 900
    assert fit(available=1125).fits(spec, ())
    assert not fit(available=1124).fits(spec, ())


@pytest.mark.contract("sched.memory")
def test_what_others_hold_mapped_is_not_free_though_the_system_says_so(
    spec: core.EngineSpec,
) -> None:
    machine = fit(available=3000, total=3000)
    assert machine.fits(spec, (spec,) * 2)
    assert not machine.fits(spec, (spec,) * 3)


@pytest.mark.contract("sched.memory")
def test_a_model_lies_on_all_gpus_or_on_its_own_or_on_none(spec: core.EngineSpec) -> None:
    machine = fit(available=5000, devices=[gpu(0, 800), gpu(1, 1200)])
    assert machine.fits(spec, (spec,) * 9)  # what is free of a GPU, its driver knows
    assert machine.fits(replace(spec, main_gpu=1), ())
    assert not machine.fits(replace(spec, main_gpu=0), ())
    assert machine.fits(replace(spec, n_gpu_layers=0), (spec,) * 20)
    assert not fit(available=100, devices=[gpu(0, 9999)]).fits(replace(spec, n_gpu_layers=0), ())


def test_files_that_are_gone_are_left_to_the_engine(spec: core.EngineSpec) -> None:
    assert not fit().fits(replace(spec, weights="/nowhere", drafter=None, projector=None), ())
    gone = core.EngineSpec(weights="/nowhere", drafter="/nowhere/else")
    assert fit(available=1).fits(gone, ())
