"""Where models lie is what placement decided: told to llama.cpp, and done by it where it can be.

ggml counts the processor among its devices, so that lists of them load for real on any machine.
"""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from specd.core import EngineSpec
from specd.engine.llama import devices
from specd.engine.llama.device_placement import DevicePlacement
from specd.errors import LoadFailed
from specd.runner import Process
from tests import gguf_embedders, gguf_files
from tests.engine.llama.conftest import BATCH_INVARIANT, DRAFTER, TARGET, Engine, load
from tests.engine.llama.test_encoder import load as load_encoder

#: Names of devices in the tests, which ggml knows on a machine that has them.
GPUS = ("CUDA0", "CUDA1", "Vulkan0")
NONE, LAYER = llama_cpp.LLAMA_SPLIT_MODE_NONE, llama_cpp.LLAMA_SPLIT_MODE_LAYER


@dataclass
class ModelParams:
    """The parameters that llama.cpp got for one model; devices None: it may use any."""

    devices: list[str] | None
    n_gpu_layers: int
    split_mode: int
    main_gpu: int
    load_mode: int
    shares: list[float]


@dataclass
class Loads:
    loaded_params: list[ModelParams] = field(default_factory=list)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Record the parameters of every model that is loaded; the loads are real."""
    found = Loads()
    load_from_file = llama_cpp.llama_model_load_from_file

    def listen(path: bytes, params: llama_cpp.llama_model_params) -> object:
        found.loaded_params.append(params_of(params))
        return load_from_file(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", listen)
    return found


def params_of(params: llama_cpp.llama_model_params) -> ModelParams:
    devices: list[str] | None = None
    if params.devices:
        addresses = ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p))
        devices = []
        while (address := addresses[len(devices)]) is not None:
            devices.append(_name(address))
    n = llama_cpp.llama_max_devices() if params.tensor_split else 0
    return ModelParams(
        devices,
        params.n_gpu_layers,
        params.split_mode,
        params.main_gpu,
        params.load_mode,
        [params.tensor_split[i] for i in range(n)],
    )


def _name(address: int) -> str:
    names = ("CPU", *GPUS)
    return next(name for name in names if devices.by_name(name.encode()) == address)


def answer(engine: Engine) -> str:
    return engine.answer("def walk(top):\n    ", n_predict=24, seed=4)[0]


# --------------------------------------------------------------------------- parameters


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake two GPUs by name; no model can be loaded onto them."""
    addresses = {name.encode(): 16 * at for at, name in enumerate(GPUS, start=1)}
    monkeypatch.setattr(devices, "by_name", addresses.get)


def loaded_params(where: DevicePlacement) -> ModelParams:
    params = llama_cpp.llama_model_default_params()
    kept = where.apply_to(params)
    found = params_of(params)
    del kept
    return found


AUTO = llama_cpp.LLAMA_LOAD_MODE_AUTO
UUIDS = ("GPU-8a1d", "GPU-0c44")


def spec(**fields: object) -> EngineSpec:
    return EngineSpec(weights="m.gguf", **fields)  # type: ignore[arg-type]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "asked, target, drafter",
    [
        # Without a placement, llama.cpp or the caller's main_gpu decides.
        (spec(), ModelParams(None, -1, LAYER, 0, AUTO, []), None),
        (spec(n_gpu_layers=7, main_gpu=1), ModelParams(None, 7, NONE, 1, AUTO, []), None),
        (spec(draft_device=1), ModelParams(None, -1, LAYER, 0, AUTO, []), None),
        # Main memory wins over all other settings.
        (spec(devices=()), ModelParams([], 0, NONE, 0, AUTO, []), None),
        (spec(devices=(), n_gpu_layers=9), ModelParams([], 0, NONE, 0, AUTO, []), None),
        # One device: no splitting, whatever it is called.
        (spec(devices=UUIDS[:1]), ModelParams(["CUDA0"], -1, NONE, 0, AUTO, []), None),
        (spec(devices=("MIG-77",)), ModelParams(["CUDA0"], -1, NONE, 0, AUTO, []), None),
        (
            spec(devices=("Vulkan0",), main_gpu=3),
            ModelParams(["Vulkan0"], -1, NONE, 0, AUTO, []),
            None,
        ),
        (
            spec(devices=UUIDS[:1], n_gpu_layers=5),
            ModelParams(["CUDA0"], 5, NONE, 0, AUTO, []),
            None,
        ),
        # Several, with and without shares; the drafter on one of them.
        (
            spec(devices=UUIDS, draft_device=1),
            ModelParams(["CUDA0", "CUDA1"], -1, LAYER, 0, AUTO, []),
            ModelParams(["CUDA1"], -1, NONE, 0, AUTO, []),
        ),
        (
            spec(devices=UUIDS, tensor_split=(0.25, 0.75), n_gpu_layers=60, draft_device=0),
            ModelParams(["CUDA0", "CUDA1"], 60, LAYER, 0, AUTO, [0.25, 0.75, *[0.0] * 14]),
            ModelParams(["CUDA0"], -1, NONE, 0, AUTO, []),
        ),
        # A device without a share of the target is the drafter's own.
        (
            spec(devices=UUIDS, tensor_split=(33.0, 0.0), draft_device=1),
            ModelParams(["CUDA0"], -1, NONE, 0, AUTO, []),
            ModelParams(["CUDA1"], -1, NONE, 0, AUTO, []),
        ),
        (
            spec(devices=UUIDS[:1], n_gpu_layers=0, draft_device=0),
            ModelParams([], 0, NONE, 0, AUTO, []),
            ModelParams(["CUDA0"], -1, NONE, 0, AUTO, []),
        ),
        # NVIDIA's are numbered among themselves.
        (
            spec(devices=("Vulkan0", *UUIDS), draft_device=2),
            ModelParams(["Vulkan0", "CUDA0", "CUDA1"], -1, LAYER, 0, AUTO, []),
            ModelParams(["CUDA1"], -1, NONE, 0, AUTO, []),
        ),
        # The drafter in main memory, and the target where it was.
        (
            spec(devices=UUIDS[:1], draft_on_cpu=True),
            ModelParams(["CUDA0"], -1, NONE, 0, AUTO, []),
            ModelParams([], 0, NONE, 0, AUTO, []),
        ),
        (
            spec(draft_on_cpu=True),
            ModelParams(None, -1, LAYER, 0, AUTO, []),
            ModelParams([], 0, NONE, 0, AUTO, []),
        ),
    ],
)
def test_the_placement_sets_llama_cpps_parameters(
    asked: EngineSpec, target: ModelParams, drafter: ModelParams | None
) -> None:
    """Drafter None: its parameters equal the target's."""
    assert loaded_params(DevicePlacement.of_target(asked)) == target
    assert loaded_params(DevicePlacement.of_drafter(asked)) == (drafter or target)


def test_a_projector_uses_the_first_device() -> None:
    assert DevicePlacement().is_on_gpu
    assert DevicePlacement().first_device() is None
    assert not DevicePlacement(devices=()).is_on_gpu
    assert not DevicePlacement(n_gpu_layers=0).is_on_gpu
    named = DevicePlacement(devices=("CPU",)).first_device()
    assert named is not None
    assert _name(named) == "CPU"


@pytest.mark.parametrize("device", ["Vulkan7", "GPU-8a1d"])
def test_a_missing_device_is_an_error_that_names_it(device: str) -> None:
    with pytest.raises(LoadFailed, match=r"device (Vulkan7|CUDA0) not found: llama.cpp finds"):
        load(TARGET, devices=(device,))


# --------------------------------------------------------------------------- what is done


def test_main_memory_and_named_devices_give_the_same_text(loads: Loads) -> None:
    exact: dict[str, Any] = BATCH_INVARIANT
    plain = answer(load(TARGET, **exact))
    alone = load(TARGET, DRAFTER, devices=(), n_gpu_layers=20, **exact)
    assert alone.loaded.facts.target.vram_bytes == 0
    assert answer(alone) == plain
    one = load(TARGET, DRAFTER, devices=("CPU",), **exact)
    assert answer(one) == plain
    two = load(
        TARGET,
        DRAFTER,
        devices=("CPU", "CPU"),
        tensor_split=(0.5, 0.5),
        draft_device=1,
        **exact,
    )
    assert answer(two) == plain
    assert [
        (loaded_params.devices, loaded_params.n_gpu_layers) for loaded_params in loads.loaded_params
    ] == [
        (None, -1),
        *[([], 0)] * 2,
        *[(["CPU"], -1)] * 2,
        (["CPU", "CPU"], -1),
        (["CPU"], -1),
    ]
    assert [loaded_params.split_mode for loaded_params in loads.loaded_params[-2:]] == [LAYER, NONE]
    assert loads.loaded_params[-2].shares[:3] == [0.5, 0.5, 0.0]


def test_a_drafter_in_main_memory_drafts_for_a_target_on_a_device(loads: Loads) -> None:
    engine = load(TARGET, DRAFTER, devices=("CPU",), draft_on_cpu=True)
    assert [loaded_params.devices for loaded_params in loads.loaded_params] == [["CPU"], []]
    stats = engine.answer("def walk(top):\n    ", n_predict=40, seed=1)[1].speculation
    assert stats.drafter == "drafter"
    assert engine.loaded.facts.drafter is not None


def test_an_embedding_model_follows_its_placement(tmp_path: Path, loads: Loads) -> None:
    path = gguf_embedders.write_bert(tmp_path / "bert.gguf")
    load_encoder(path, devices=("CPU",))
    assert [loaded_params.devices for loaded_params in loads.loaded_params] == [["CPU"]]


# --------------------------------------------------------------------------- pinned in memory


def locked_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmLck:\s*(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("use_mmap", [None, True, False])
def test_weights_are_locked_in_memory_on_request(
    tmp_path: Path, loads: Loads, use_mmap: bool | None
) -> None:
    """A model this small is within every user's limit."""
    model = gguf_files.write_llama(tmp_path / "m.gguf")
    before = locked_bytes()
    engine = load(model, n_ctx=64, use_mlock=True, use_mmap=use_mmap)
    assert locked_bytes() - before >= engine.loaded.facts.target.weights_bytes > 0
    mode = (
        llama_cpp.LLAMA_LOAD_MODE_MLOCK
        if use_mmap is False
        else llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK
    )
    assert [loaded_params.load_mode for loaded_params in loads.loaded_params] == [mode]


@pytest.mark.parametrize(
    "use_mmap, mode",
    [
        (None, AUTO),
        (True, llama_cpp.LLAMA_LOAD_MODE_MMAP),
        (False, llama_cpp.LLAMA_LOAD_MODE_NONE),
    ],
)
def test_weights_are_not_locked_by_default(
    tmp_path: Path, loads: Loads, use_mmap: bool | None, mode: int
) -> None:
    before = locked_bytes()
    load(gguf_files.write_llama(tmp_path / "m.gguf"), n_ctx=64, use_mmap=use_mmap)
    assert locked_bytes() == before
    assert [loaded_params.load_mode for loaded_params in loads.loaded_params] == [mode]


#: A user without the right to lock (CAP_IPC_LOCK, which root would have) and no room to do so.
_MAY_LOCK_NOTHING = """
import ctypes, os, resource, sys
PR_CAPBSET_DROP, CAP_IPC_LOCK = 24, 14
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
os.execv(sys.executable, [sys.executable, "-m", "specd.engine", *sys.argv[1:]])
"""


async def test_memory_that_cannot_be_locked_gives_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pinned = EngineSpec(
        weights=str(TARGET), drafter=str(DRAFTER), n_ctx=256, n_threads=1, use_mlock=True
    )
    process = Process(pinned, command=(sys.executable, "-c", _MAY_LOCK_NOTHING))
    with caplog.at_level(logging.WARNING):
        facts = await process.ready()
        process.stop()
        await process.ended()
    assert facts.drafter is not None
    said = [record.getMessage() for record in caplog.records]
    assert sum("failed to mlock" in line for line in said) == 1
    assert sum("RLIMIT_MEMLOCK" in line for line in said) == 1
