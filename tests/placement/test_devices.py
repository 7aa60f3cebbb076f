"""Check which GPUs of any vendor count, and how their memory is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specd.core import BackendDevice
from specd.placement import Cpu, Device, DeviceKind, Devices, devices
from specd.placement.nvidia import Gpu

RAM = Cpu(total_bytes=64, available_bytes=40, n_cores=1)
BUS = "0000:0c:00.0"

VULKAN = BackendDevice(
    name="Vulkan0",
    backend="Vulkan",
    description="Radeon",
    integrated=False,
    bus_id=BUS,
    total_bytes=16,
    free_bytes=15,
)
SHARED = replace(
    VULKAN, name="Vulkan1", description="Iris", integrated=True, bus_id="", total_bytes=99
)
NVIDIA = Gpu(index=0, bus_id=BUS, uuid="GPU-1", name="RTX", total_bytes=24, free_bytes=20)


class Llama:
    """Fake query of llama.cpp's devices; counts the queries."""

    def __init__(self, *offers: BackendDevice) -> None:
        self.offers: Sequence[BackendDevice] | None = offers
        self.n_asked = 0

    def __call__(self) -> Sequence[BackendDevice] | None:
        self.n_asked += 1
        return self.offers


def ask(*offers: BackendDevice, gpus: list[Gpu] | None = None, **fields: Any) -> Devices:
    known: dict[str, Any] = {
        "cpu": lambda: RAM,
        "gpus": lambda: gpus,
        "environ": {},
        "root": Path("/nowhere"),
    }
    return Devices(offers, **known | fields)


def write_memory(root: Path, *, total: int, used: int, vendor: str = "0x1002") -> None:
    folder = root / "sys/bus/pci/devices" / BUS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "mem_info_vram_total").write_text(f"{total}\n")
    (folder / "mem_info_vram_used").write_text(f"{used}\n")


def test_a_device_is_named_as_llama_cpp_names_it() -> None:
    assert ask(VULKAN)() == [
        Device(
            vendor="",
            index=0,
            name="Radeon",
            uuid="",
            total_bytes=16,
            free_bytes=15,
            id="Vulkan0",
            kind=DeviceKind.DISCRETE,
        )
    ]


def test_llama_cpp_is_queried_again_if_no_driver_reports_memory() -> None:
    llama = Llama(replace(VULKAN, free_bytes=3))
    found = ask(VULKAN, probe_again=llama)
    assert [found()[0].free_bytes for _ in range(3)] == [15, 3, 3]
    assert llama.n_asked == 2


def test_without_an_answer_of_llama_cpp_the_last_one_counts() -> None:
    llama = Llama()
    llama.offers = None
    found = ask(VULKAN, probe_again=llama)
    assert [found()[0].free_bytes for _ in range(2)] == [15, 15]


def test_a_gpu_that_llama_cpp_no_longer_offers_is_left_out() -> None:
    other = replace(VULKAN, name="Vulkan1", bus_id="")
    found = ask(VULKAN, other, probe_again=Llama(other))
    assert [device.id for device in found()] == ["Vulkan0", "Vulkan1"]
    assert [(device.id, device.index) for device in found()] == [("Vulkan1", 1)]


def test_a_gpu_that_could_not_be_opened_is_left_out() -> None:
    assert ask(replace(VULKAN, total_bytes=0, free_bytes=0))() == []


def test_amds_driver_reports_memory_without_llama_cpp(tmp_path: Path) -> None:
    llama = Llama(VULKAN)
    write_memory(tmp_path, total=1000, used=300)
    found = ask(VULKAN, probe_again=llama, root=tmp_path)
    assert [(d.total_bytes, d.free_bytes, d.vendor) for d in found()] == [(1000, 700, "amd")]
    write_memory(tmp_path, total=1000, used=900)
    assert found()[0].free_bytes == 100
    assert llama.n_asked == 0


def test_nvml_reports_memory_for_every_backend() -> None:
    llama = Llama(VULKAN)
    found = ask(VULKAN, gpus=[NVIDIA], probe_again=llama)
    found()
    (device,) = found()
    assert (device.id, device.uuid, device.vendor) == ("Vulkan0", "GPU-1", "nvidia")
    assert (device.total_bytes, device.free_bytes) == (24, 20)
    assert llama.n_asked == 0


def test_a_gpu_that_two_backends_offer_is_one_device() -> None:
    cuda = replace(VULKAN, name="CUDA0", backend="CUDA")
    assert [device.id for device in ask(cuda, VULKAN, gpus=[NVIDIA])()] == ["GPU-1"]


def test_a_gpu_of_another_machine_is_left_out() -> None:
    remote = replace(VULKAN, name="RPC0", backend="RPC", bus_id="")
    assert [device.id for device in ask(remote, VULKAN)()] == ["Vulkan0"]


# --------------------------------------------------------------------------- integrated GPUs


def test_an_integrated_gpu_has_no_more_memory_than_the_machine() -> None:
    (device,) = ask(replace(SHARED, free_bytes=90))()
    assert device.kind is DeviceKind.INTEGRATED
    assert (device.total_bytes, device.free_bytes) == (64, 40)


def test_an_integrated_gpu_may_be_given_less_than_there_is() -> None:
    assert ask(replace(SHARED, free_bytes=7))()[0].free_bytes == 7


def test_an_integrated_gpu_can_have_more_than_its_reserved_memory(tmp_path: Path) -> None:
    write_memory(tmp_path, total=2, used=1)
    (device,) = ask(replace(SHARED, bus_id=BUS, free_bytes=30), root=tmp_path)()
    assert device.free_bytes == 30


@pytest.mark.contract("env.igpu")
@pytest.mark.parametrize(
    "igpu, offers, ids",
    [
        (None, (VULKAN, SHARED), ["Vulkan0"]),
        (None, (SHARED,), ["Vulkan1"]),
        (True, (VULKAN, SHARED), ["Vulkan0", "Vulkan1"]),
        (False, (VULKAN, SHARED), ["Vulkan0"]),
        (False, (SHARED,), []),
    ],
)
def test_an_integrated_gpu_counts_without_another_or_by_the_users_setting(
    igpu: bool | None, offers: tuple[BackendDevice, ...], ids: list[str]
) -> None:
    assert [device.id for device in ask(*offers, igpu=igpu)()] == ids


def test_a_lost_gpu_is_not_replaced_by_an_integrated_one() -> None:
    cuda = replace(VULKAN, name="CUDA0", backend="CUDA")
    gpus = [NVIDIA]
    found = Devices([cuda, SHARED], cpu=lambda: RAM, gpus=lambda: list(gpus), environ={})
    assert [device.id for device in found()] == ["GPU-1"]
    gpus.clear()
    assert found() == []


# --------------------------------------------------------------------------- builds without GPUs


def test_a_build_for_the_cpu_names_the_gpus_that_it_does_not_use() -> None:
    assert ask(gpus=[NVIDIA])() == []
    [sentence] = ask(gpus=[NVIDIA]).unusable_gpus()
    assert sentence == "RTX is not used: the installed llama.cpp does not support it"
    assert ask(VULKAN, gpus=[NVIDIA]).unusable_gpus() == []


@pytest.mark.parametrize("variable", ["7", "-1", "abc", "0,0", ""])
def test_a_variable_that_hides_all_gpus_is_named(variable: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": variable}
    [sentence] = ask(gpus=[NVIDIA], environ=environ).unusable_gpus()
    assert sentence == f"CUDA_VISIBLE_DEVICES={variable} hides all GPUs: models run in main memory"
    assert ask(VULKAN, gpus=[NVIDIA], environ=environ).unusable_gpus() == []


def test_a_gpu_of_unknown_memory_is_named() -> None:
    silent = replace(VULKAN, total_bytes=0, free_bytes=0)
    [sentence] = ask(silent).unusable_gpus()
    assert sentence == "Radeon is not used: its memory size is unknown"


@pytest.mark.parametrize(
    "offered, gpus, is_complete",
    [([], None, True), ([VULKAN], None, True), (None, [NVIDIA], True), (None, None, False)],
)
def test_devices_report_whether_llama_cpp_may_find_more(
    offered: list[BackendDevice] | None, gpus: list[Gpu] | None, *, is_complete: bool
) -> None:
    found = Devices(offered, gpus=lambda: gpus, environ={})
    found()
    assert found.is_complete() is is_complete


def test_the_devices_of_this_machine_can_be_read() -> None:
    assert all(device.total_bytes > 0 for device in devices())


def test_listing_gpus_only_starts_no_engine() -> None:
    llama = Llama(VULKAN)
    asked = ask(VULKAN, SHARED, probe_again=llama)
    assert asked() != []
    assert asked.driver_devices() == []
    assert llama.n_asked == 0
    assert [device.free_bytes for device in ask(VULKAN, gpus=[NVIDIA]).driver_devices()] == [20]
