"""Check the placement of models with real files and the current free memory."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specd import core
from specd.core import EngineFacts, EngineSpec, GiveUp, ModelMemory
from specd.errors import InvalidOption
from specd.placement import Cpu, Device, DeviceKind, Placer
from specd.placement.estimate import MIB, Footprint, upper_bound
from specd.placement.layout import Layout
from specd.placement.memory_estimator import Simulate
from specd.placement.planner import PROCESS_BYTES
from specd.placement.resident_usage import layout_of
from specd.store.shape import Shape, read_shape
from tests.gguf_files import write_llama

GIB = 2**30


def gpu(index: int, free_mib: int, total_mib: int = 8192) -> Device:
    return Device(
        vendor="nvidia",
        index=index,
        name="NVIDIA GeForce RTX 4060",
        uuid=f"GPU-{index}",
        total_bytes=total_mib * MIB,
        free_bytes=free_mib * MIB,
        id=f"GPU-{index}",
    )


class Box:
    """A machine with a list of readings of free memory; the last reading repeats."""

    def __init__(
        self, *readings: Sequence[Device], available: int = 8 * GIB, total: int = 16 * GIB
    ) -> None:
        self.readings = list(readings)
        self.cpu = Cpu(total_bytes=total, available_bytes=available, n_cores=4)
        self.slept: list[float] = []

    def devices(self) -> Sequence[Device]:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def fit(
        self,
        simulate: Simulate = lambda loads: [None] * len(loads),
        *,
        is_complete: bool = True,
    ) -> Placer:
        return Placer(
            read_shape,
            simulate,
            is_complete=lambda: is_complete,
            devices=self.devices,
            cpu=lambda: self.cpu,
            sleep=self.slept.append,
        )


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    target, drafter = write_llama(tmp_path / "t.gguf"), write_llama(tmp_path / "d.gguf")
    return EngineSpec(weights=str(target), drafter=str(drafter), drafter_name="small", n_ctx=512)


def asked(
    spec: EngineSpec, *residents: EngineSpec, give_up: GiveUp = GiveUp.NOTHING
) -> core.PlacementRequest:
    return core.PlacementRequest(
        spec=spec, min_ctx=spec.n_ctx, residents=tuple(residents), give_up=give_up
    )


def models(spec: EngineSpec) -> list[Footprint]:
    target = read_shape(Path(spec.weights))
    spec = replace(spec, n_ctx=min(spec.n_ctx, target.n_ctx_train))
    found = [upper_bound(spec, target)]
    if spec.drafter:
        found.append(upper_bound(spec, read_shape(Path(spec.drafter)), is_drafter=True))
    return found


# --------------------------------------------------------------------------------- places


@pytest.mark.contract("sched.memory")
def test_both_models_get_their_gpu(spec: EngineSpec, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        placement = Box([gpu(0, 700), gpu(1, 4000)]).fit().place(asked(spec))
    assert placement.fits
    assert placement.spec.devices == ("GPU-1",)
    assert placement.spec.drafter == spec.drafter
    on_gpu = sum(model.on_device(-1) for model in models(spec))
    assert dict(placement.bytes_by_device)["GPU-1"] == on_gpu + PROCESS_BYTES
    (line,) = caplog.messages
    assert re.fullmatch(
        r"t\.gguf with small takes 40\d MiB of 3\.9 GiB free on NVIDIA GeForce RTX 4060 \(1\) and"
        r" \d MiB of 8\.0 GiB free in main memory; 512 tokens of context",
        line,
    )


@pytest.mark.contract("sched.memory")
def test_a_model_without_enough_memory_waits_for_an_unload(
    spec: EngineSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        placement = Box([gpu(0, 700)]).fit().place(asked(spec, give_up=GiveUp.DRAFTER))
    assert (placement.spec, placement.fits) == (spec, False)
    (line,) = caplog.messages
    assert re.fullmatch(
        r"t\.gguf needs about \d MiB, and it may take 0 MiB of 700 MiB free on NVIDIA GeForce"
        r" RTX 4060 \(0\): another model has to be unloaded first",
        line,
    )


@pytest.mark.contract("sched.memory")
def test_models_in_main_memory_stay_if_gpu_memory_is_short(
    spec: EngineSpec, tmp_path: Path
) -> None:
    other = EngineSpec(weights=str(write_llama(tmp_path / "o.gguf")), n_ctx=512)
    in_memory = replace(other, devices=(), n_gpu_layers=-1)
    full = Box([gpu(0, 700)]).fit()
    placement = full.place(asked(spec, in_memory))
    assert placement.fits
    assert placement.spec.devices == ()
    assert not full.place(asked(spec, replace(other, devices=("GPU-0",)))).fits
    # Main memory is too small as well, so a model there must be unloaded.
    assert not Box([gpu(0, 700)], available=0).fit().place(asked(spec, in_memory)).fits


def test_losses_are_logged(spec: EngineSpec, caplog: pytest.LogCaptureFixture) -> None:
    target, drafter = models(spec)
    spared_mib = 384 + 400
    free_mib = spared_mib + (target.on_device(-1) + drafter.on_device(-1)) // MIB
    with caplog.at_level(logging.INFO):
        placement = Box([gpu(0, free_mib)]).fit().place(asked(spec, give_up=GiveUp.DRAFTER))
    assert placement.spec.drafter is None
    assert "512 tokens of context; no drafter, because small needs 2 MiB, and" in caplog.text


@pytest.mark.contract("sched.memory")
@pytest.mark.parametrize("is_complete, devices", [(True, ()), (False, None)])
def test_without_devices_main_memory_is_used_unless_llama_cpp_finds_some(
    spec: EngineSpec, is_complete: bool, devices: tuple[str, ...] | None
) -> None:
    placement = Box([]).fit(is_complete=is_complete).place(asked(spec))
    assert placement.fits
    assert placement.spec == replace(spec, devices=devices)
    needed = sum(model.total_bytes for model in models(spec))
    assert placement.bytes_by_device == (("CPU", needed),)


@pytest.mark.contract("sched.memory")
def test_four_fifths_of_main_memory_may_be_taken(spec: EngineSpec) -> None:
    needed = sum(model.total_bytes for model in models(spec))
    enough = needed * 5 // 4 + 1
    assert Box([], available=enough).fit().place(asked(spec)).fits
    assert not Box([], available=enough - 2).fit().place(asked(spec)).fits


@pytest.mark.contract("sched.memory")
@pytest.mark.parametrize("total, leaves", [(16 * GIB, True), (3 * MIB, False)])
def test_models_are_unloaded_for_a_drafter_that_fits_into_all_of_main_memory(
    spec: EngineSpec, total: int, leaves: bool
) -> None:
    target, drafter = (model.total_bytes for model in models(spec))
    available = int((target + drafter / 2) / 0.8)
    box = Box([], available=available, total=max(total, available))
    placement = box.fit().place(asked(spec))
    assert placement.fits is not leaves
    assert leaves or placement.spec.drafter is None


@pytest.mark.contract("options.runner")
def test_a_missing_gpu_is_an_error_of_the_request(spec: EngineSpec) -> None:
    with pytest.raises(InvalidOption) as raised:
        Box([gpu(0, 4000)]).fit().place(asked(replace(spec, main_gpu=1)))
    assert str(raised.value) == (
        'option "main_gpu" is 1, and there is no such GPU: there is 0 (NVIDIA GeForce RTX 4060)'
    )


@pytest.mark.contract("options.runner")
def test_without_known_devices_llama_cpp_decides_on_main_gpu(spec: EngineSpec) -> None:
    spec = replace(spec, main_gpu=1)
    assert Box([]).fit(is_complete=False).place(asked(spec)).spec == spec


def test_projectors_and_adapters_take_memory(spec: EngineSpec, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(bytes(1000))
    (tmp_path / "a").write_bytes(bytes(200))
    more = replace(spec, projector=str(tmp_path / "p"), adapters=(str(tmp_path / "a"),))
    box = Box([gpu(0, 4000)])
    plain, larger = (dict(box.fit().place(asked(s)).bytes_by_device) for s in (spec, more))
    assert larger["GPU-0"] == plain["GPU-0"] + 1200


@pytest.mark.parametrize("damaged", ["weights", "drafter"])
def test_an_unreadable_file_takes_its_size(spec: EngineSpec, tmp_path: Path, damaged: str) -> None:
    (tmp_path / "x").write_bytes(bytes(50_000))
    long = str(tmp_path / "x")
    spec = replace(spec, weights=long) if damaged == "weights" else replace(spec, drafter=long)
    placement = Box([gpu(0, 4000)]).fit().place(asked(spec))
    assert placement.spec.devices == ("GPU-0",)
    assert dict(placement.bytes_by_device)["GPU-0"] > PROCESS_BYTES + 50_000


def test_missing_files_are_left_to_the_engine() -> None:
    gone = EngineSpec(weights="/nowhere", drafter="/nowhere/else")
    assert Box([]).fit().place(asked(gone)).fits


# --------------------------------------------------------------------------------- simulated


class Simulator:
    """Fake simulated loads: half of the upper bound, or None for the failing models."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.loads: list[core.SimulatedLoad] = []

    def __call__(
        self, loads: Sequence[core.SimulatedLoad]
    ) -> list[list[core.ContextMemory] | None]:
        self.loads.extend(loads)
        return [self.answer(load) for load in loads]

    def answer(self, load: core.SimulatedLoad) -> list[core.ContextMemory] | None:
        path = load.spec.drafter if load.is_drafter else load.spec.weights
        assert path is not None
        if path in self.failing:
            return None
        return [self.context(read_shape(Path(path)), load, n_ctx) for n_ctx in load.n_ctxs]

    def context(self, shape: Shape, load: core.SimulatedLoad, n_ctx: int) -> core.ContextMemory:
        spec = replace(load.spec, n_ctx=n_ctx)
        bound = upper_bound(spec, shape, is_drafter=load.is_drafter)
        return core.ContextMemory(
            n_ctx=n_ctx,
            layers=tuple((at, block.cache_bytes // 2) for at, block in enumerate(bound.blocks)),
            n_cells=n_ctx,
            scratch_bytes=bound.device_scratch_bytes // 2,
            results_bytes=bound.host_scratch_bytes // 2,
        )


def test_a_model_that_fits_by_its_upper_bound_is_not_simulated(spec: EngineSpec) -> None:
    simulator = Simulator()
    for gpus in ([], [gpu(0, 4000)]):
        assert Box(gpus).fit(simulator).place(asked(spec)).fits
    assert not simulator.loads


def test_a_model_that_may_not_fit_is_simulated_once(spec: EngineSpec) -> None:
    needed = sum(model.total_bytes for model in models(spec))
    simulator = Simulator()
    box = Box([], available=needed)
    assert not box.fit().place(asked(spec)).fits
    fit = box.fit(simulator)
    placement = fit.place(asked(spec))
    assert placement.fits
    assert dict(placement.bytes_by_device)["CPU"] < needed
    assert [load.is_drafter for load in simulator.loads] == [False, True]
    assert [load.n_ctxs for load in simulator.loads] == [(256, 512)] * 2
    assert fit.place(asked(replace(spec, n_ctx=300))).fits
    assert len(simulator.loads) == 2


def test_a_longer_context_than_the_simulated_ones_is_simulated_again(tmp_path: Path) -> None:
    weights = write_llama(tmp_path / "x.gguf", extra={"llama.context_length": 65_536})
    spec = EngineSpec(weights=str(weights), n_ctx=32_768)
    simulator = Simulator()
    fit = Box([], available=0).fit(simulator)
    fit.place(asked(spec))
    fit.place(asked(replace(spec, n_ctx=65_536)))
    assert [load.n_ctxs[-1] for load in simulator.loads] == [32_768, 65_536]
    box = Box([gpu(0, 4000)])
    fit = box.fit(simulator)
    short, long = (
        dict(fit.place(asked(replace(spec, n_ctx=n))).bytes_by_device)["GPU-0"]
        for n in (32_768, 65_536)
    )
    assert long > short


def test_residents_of_a_full_machine_are_simulated_too(spec: EngineSpec) -> None:
    other = replace(spec, use_mmap=False, kv_cache_type="f32")
    simulator = Simulator()
    Box([], available=0).fit(simulator).place(asked(spec, other))
    assert {load.spec.kv_cache_type for load in simulator.loads} == {"f16", "f32"}


def test_a_model_that_llama_cpp_cannot_simulate_counts_by_its_upper_bound(spec: EngineSpec) -> None:
    needed = sum(model.total_bytes for model in models(spec))
    simulator = Simulator(spec.weights, str(spec.drafter))
    box = Box([], available=needed)
    fit = box.fit(simulator)
    assert fit.place(asked(spec)) == box.fit().place(asked(spec))
    fit.place(asked(spec))
    assert len(simulator.loads) == 2  # failures are cached


# ------------------------------------------------------------------------------ other engines


@pytest.mark.contract("sched.memory")
def test_files_that_other_engines_map_do_not_count_as_free(
    spec: EngineSpec,
) -> None:
    spec = replace(spec, use_mmap=False)
    needed = sum(model.total_bytes for model in models(spec))
    total = 3 * needed + 10
    fit = Box([], available=total, total=total).fit()
    assert fit.place(asked(spec)).fits
    assert fit.place(asked(spec, spec)).fits
    assert not fit.place(asked(spec, spec, spec)).fits


@pytest.mark.contract("sched.memory")
@pytest.mark.parametrize("use_mmap, fits", [(None, True), (True, True), (False, False)])
def test_a_drafter_that_two_engines_map_counts_once(
    spec: EngineSpec, tmp_path: Path, use_mmap: bool | None, fits: bool
) -> None:
    spec = replace(spec, use_mmap=use_mmap)
    other = replace(spec, weights=str(write_llama(tmp_path / "other.gguf", seed=7)))
    needed = sum(model.total_bytes for model in models(spec))
    held = sum(model.total_bytes for model in models(other))
    shared = models(spec)[1].weights_bytes
    total = held + (needed - shared) * 5 // 4 + 5
    assert Box([], available=total, total=total).fit().place(asked(spec, other)).fits == fits


@pytest.mark.contract("sched.memory")
def test_models_on_a_gpu_take_no_main_memory(spec: EngineSpec) -> None:
    other = replace(spec, devices=("GPU-0",), weights=spec.weights)
    needed = sum(model.total_bytes for model in models(spec))
    total = needed * 5 // 4 + 5 + 2 * sum(model.in_main_memory(-1) for model in models(other))
    box = Box([gpu(0, 700)], available=total, total=total)
    assert box.fit().place(asked(replace(spec, n_gpu_layers=0), other)).fits


@pytest.mark.contract("sched.memory")
def test_models_on_unnamed_gpus_take_no_main_memory(spec: EngineSpec) -> None:
    needed = sum(model.total_bytes for model in models(spec))
    total = needed * 5 // 4 + 5
    box = Box([gpu(0, 4000)], available=total, total=total)
    on_cpu = replace(spec, n_gpu_layers=0, use_mmap=False)
    assert box.fit().place(asked(on_cpu, spec)).fits
    assert not box.fit().place(asked(on_cpu, on_cpu)).fits


def test_a_layout_follows_from_a_spec() -> None:
    spec = EngineSpec(weights="w", drafter="d", devices=("a", "b"), tensor_split=(5.0, 4.0))
    assert layout_of(spec, 8) == Layout(layers=((0, 5), (1, 4)), drafter=0)
    spec = replace(spec, tensor_split=(9.0, 0.0), draft_device=1)
    assert layout_of(spec, 8) == Layout(layers=((0, 9),), drafter=1)
    spec = EngineSpec(weights="w", drafter="d", devices=("a",), draft_on_cpu=True)
    assert layout_of(spec, 8) == Layout(layers=((0, 9),))
    assert layout_of(replace(spec, devices=()), 8) == Layout()
    spec = EngineSpec(weights="w", drafter="d", devices=("a",), n_gpu_layers=0)
    assert layout_of(spec, 8) == Layout()
    assert layout_of(replace(spec, draft_device=0), 8) == Layout(drafter=0)


# ------------------------------------------------------------------------- memory freed late


def test_placement_waits_for_the_memory_of_an_ended_engine(spec: EngineSpec) -> None:
    free, taken = [gpu(0, 4000)], [gpu(0, 700)]
    box = Box(free, taken, taken, free)
    fit = box.fit()
    first = fit.place(asked(spec))
    second = fit.place(asked(replace(spec, n_ctx=256)))
    assert first.spec.devices == second.spec.devices == ("GPU-0",)
    assert box.slept == [0.1, 0.2]


def test_placement_waits_only_once_for_memory_that_another_process_took(spec: EngineSpec) -> None:
    box = Box([gpu(0, 4000)], [gpu(0, 700)])
    fit = box.fit()
    assert fit.place(asked(spec)).fits
    assert not fit.place(asked(replace(spec, n_ctx=256))).fits
    assert sum(box.slept) == pytest.approx(2.0)
    assert not fit.place(asked(replace(spec, n_ctx=128))).fits
    assert sum(box.slept) == pytest.approx(2.0)


def test_placement_does_not_wait_for_small_differences(spec: EngineSpec) -> None:
    box = Box([gpu(0, 4000)], [gpu(0, 3800)])
    fit = box.fit()
    fit.place(asked(spec))
    fit.place(asked(replace(spec, n_ctx=256)))
    assert box.slept == []


def test_placement_does_not_wait_for_a_gpu_that_answers_again(spec: EngineSpec) -> None:
    """The earlier readings do not include the memory that others hold on it."""
    box = Box([gpu(0, 4000)], [gpu(0, 4000), gpu(1, 1000)])
    fit = box.fit()
    fit.place(asked(spec))
    fit.place(asked(replace(spec, n_ctx=256)))
    assert box.slept == []


def test_the_process_memory_of_resident_engines_is_expected(spec: EngineSpec) -> None:
    """Two of three engines stay, so placement must not wait for their processes' memory."""
    spec = replace(spec, drafter=None)
    one, two, gone = (replace(spec, n_ctx=n, devices=("GPU-0",)) for n in (512, 1024, 2048))
    box = Box([gpu(0, 6000)], [gpu(0, 5200)])
    fit = box.fit()
    fit.place(asked(gone))
    fit.place(asked(spec, one, two))
    assert box.slept == []


def test_placement_does_not_wait_while_all_engines_stay(spec: EngineSpec) -> None:
    box = Box([gpu(0, 4000)], [gpu(0, 700)])
    fit = box.fit()
    there = fit.place(asked(spec)).spec
    assert not fit.place(asked(replace(spec, n_ctx=256), there)).fits
    assert box.slept == []


# --------------------------------------------------------------------------------- measurements


@pytest.mark.parametrize(
    "n_bytes, warns",
    [(0, False), (63 * MIB, False), (65 * MIB, True), (-65 * MIB, False)],
)
def test_a_wrong_estimate_is_logged(
    spec: EngineSpec, n_bytes: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    target, drafter = models(spec)
    facts = EngineFacts(
        n_ctx=512,
        n_ctx_train=512,
        n_vocab=1,
        target=taken(target.total_bytes),
        drafter=taken(max(drafter.total_bytes + n_bytes, 0)),
    )
    Box([]).fit().record_usage(spec, facts)
    assert bool(caplog.messages) == warns
    assert not warns or caplog.messages[0].startswith("d.gguf takes 6")


def test_the_next_placement_uses_the_measured_memory(tmp_path: Path) -> None:
    large = write_llama(tmp_path / "large.gguf", extra={"llama.context_length": 65_536})
    spec = EngineSpec(weights=str(large), n_ctx=65_536)
    (estimate,) = models(spec)
    box = Box([gpu(0, 4000)])
    fit = box.fit()
    before = dict(fit.place(asked(spec)).bytes_by_device)["GPU-0"]
    facts = taken(estimate.total_bytes, cache_bytes=2 * estimate.cache_bytes)
    placed = fit.place(asked(spec)).spec
    fit.record_usage(placed, EngineFacts(n_ctx=65_536, n_ctx_train=65_536, n_vocab=1, target=facts))
    after = dict(fit.place(asked(spec)).bytes_by_device)["GPU-0"]
    assert after == before + estimate.cache_bytes


def test_a_refused_load_gets_more_memory_the_next_time(spec: EngineSpec) -> None:
    spec = replace(spec, drafter=None)
    fit = Box([gpu(0, 4000)]).fit()
    request = asked(spec)
    before = dict(fit.place(request).bytes_by_device)["GPU-0"] - PROCESS_BYTES
    placed = fit.place(replace(request, n_refusals=1)).spec
    facts = EngineFacts(n_ctx=512, n_ctx_train=512, n_vocab=1, target=taken(0))
    fit.record_usage(placed, facts)
    after = dict(fit.place(request).bytes_by_device)["GPU-0"] - PROCESS_BYTES
    assert after == pytest.approx(1.25 * before, rel=0.01)


def test_the_process_memory_on_a_gpu_is_measured(spec: EngineSpec) -> None:
    box = Box([gpu(0, 4000), gpu(1, 4000)], [gpu(0, 4000), gpu(1, 3400)])
    fit = box.fit()
    placed = fit.place(asked(replace(spec, main_gpu=1))).spec
    n_bytes = 100 * MIB
    there = replace(taken(n_bytes), vram_bytes=n_bytes, by_device=(("CUDA0", n_bytes),))
    fit.record_usage(placed, EngineFacts(n_ctx=512, n_ctx_train=512, n_vocab=1, target=there))
    box.readings = [[gpu(0, 4000), gpu(1, 4000)]]
    placement = fit.place(asked(replace(spec, main_gpu=1)))
    on_gpu = sum(model.on_device(-1) for model in models(spec))
    assert dict(placement.bytes_by_device)["GPU-1"] == on_gpu + 500 * MIB


def test_the_memory_of_another_engine_is_not_counted_as_process_memory(spec: EngineSpec) -> None:
    box = Box([gpu(0, 4000)])
    fit = box.fit()
    placed = fit.place(asked(spec)).spec
    other = fit.place(asked(replace(spec, n_ctx=256), placed)).spec
    box.readings = [[gpu(0, 2500)]]  # 1.5 GiB: both engines together
    facts = EngineFacts(n_ctx=512, n_ctx_train=512, n_vocab=1, target=taken(0))
    fit.record_usage(placed, facts)
    box.readings = [[gpu(0, 4000)]]
    on_gpu = dict(fit.place(asked(spec)).bytes_by_device)["GPU-0"]
    assert on_gpu == sum(model.on_device(-1) for model in models(spec)) + PROCESS_BYTES
    assert other.devices == ("GPU-0",)


def test_a_refusal_is_remembered_after_the_placement_of_another_model(spec: EngineSpec) -> None:
    spec = replace(spec, drafter=None)
    fit = Box([gpu(0, 4000)]).fit()
    placed = fit.place(replace(asked(spec), n_refusals=1)).spec
    before = fit.place(asked(spec)).bytes_by_device
    fit.place(asked(replace(spec, n_ctx=256)))
    fit.place(replace(asked(spec), n_refusals=1))
    fit.place(asked(replace(spec, n_ctx=256)))
    facts = EngineFacts(n_ctx=512, n_ctx_train=512, n_vocab=1, target=taken(0))
    fit.record_usage(placed, facts)
    assert fit.place(asked(spec)).bytes_by_device > before


def test_nothing_is_placed_while_usage_is_recorded(spec: EngineSpec) -> None:
    box = Box([gpu(0, 4000)])
    fit = box.fit()
    placed = fit.place(asked(spec)).spec
    held: list[bool] = []
    read = box.devices

    def devices() -> Sequence[Device]:
        held.append(fit._lock.locked())  # noqa: SLF001 - only the lock shows it
        return read()

    fit._devices = devices  # noqa: SLF001 - only the lock shows it
    facts = EngineFacts(n_ctx=512, n_ctx_train=512, n_vocab=1, target=taken(0))
    fit.record_usage(placed, facts)
    fit.place(asked(spec))
    assert held == [True, True]


def test_the_memory_of_integrated_gpus_is_not_measured(spec: EngineSpec) -> None:
    """Any process may use the main memory of an integrated GPU."""
    shared = replace(gpu(0, 4000), kind=DeviceKind.INTEGRATED)
    fit = Box([shared], [replace(shared, free_bytes=3000 * MIB)], [shared]).fit()
    before = fit.place(asked(spec))
    fit.record_usage(
        before.spec, EngineFacts(n_ctx=512, n_ctx_train=512, n_vocab=1, target=taken(0))
    )
    assert fit.place(asked(spec)).bytes_by_device == before.bytes_by_device


def taken(n_bytes: int, cache_bytes: int = 0) -> ModelMemory:
    return ModelMemory(device="CPU", total_bytes=n_bytes, vram_bytes=0, cache_bytes=cache_bytes)
