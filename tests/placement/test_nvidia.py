"""Test NVML with the real pynvml; its C library is a stub, compiled before the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.core import BackendDevice
from specd.placement import Cpu, DeviceKind
from tests.fakes import nvml
from tests.fakes.nvml import GIB, Driver, gpu, instance, instance_uuid, uuid
from tests.placement.devices_subprocess import Asking

#: The stub's text of this error; specd must log it.
LOST = "GPU is lost"


def offer(index: int, bus_id: str = "", *, integrated: bool = False) -> BackendDevice:
    return BackendDevice(
        name=f"CUDA{index}",
        backend="CUDA",
        description="as CUDA calls it",
        integrated=integrated,
        bus_id=bus_id,
        total_bytes=7 * GIB,
        free_bytes=6 * GIB,
    )


def test_every_gpu_is_listed_with_its_memory(driver: Driver) -> None:
    driver.shows(gpu(0, free=0.5), gpu(1, total=48, free=40))
    with Asking(driver.variables) as asking:
        nearly_full, empty = asking.devices()
        assert asking.said == []
    assert (nearly_full.name, nearly_full.vendor, nearly_full.kind) == (
        "Fast 9000",
        "nvidia",
        DeviceKind.DISCRETE,
    )
    assert (nearly_full.id, nearly_full.uuid) == (uuid(0), uuid(0))
    assert (nearly_full.total_bytes, nearly_full.free_bytes) == (24 * GIB, GIB // 2)
    assert (empty.index, empty.total_bytes, empty.free_bytes) == (1, 48 * GIB, 40 * GIB)


def test_memory_is_read_at_every_query(driver: Driver) -> None:
    driver.shows(gpu(0))
    with Asking(driver.variables) as asking:
        before = asking.devices()[0].free_bytes
        driver.shows(gpu(0, free=3))
        assert (before, asking.devices()[0].free_bytes) == (24 * GIB, 3 * GIB)


@pytest.mark.parametrize("how", ["lost 0", "deaf 0"])
def test_a_lost_gpu_hides_no_other_and_is_logged_once(driver: Driver, how: str) -> None:
    driver.shows(gpu(0), gpu(1))
    with Asking(driver.variables) as asking:
        assert asking.ids() == [uuid(0), uuid(1)]
        driver.shows(gpu(0), gpu(1), how)
        (left,) = asking.devices()
        assert (left.id, left.index) == (uuid(1), 1)
        (warning,) = asking.said
        assert warning.startswith("WARNING")
        assert uuid(0) in warning
        assert LOST in warning
        assert asking.ids() == [uuid(1)]
        assert asking.said == []


def test_a_lost_gpu_that_answers_again_is_used_again(driver: Driver) -> None:
    driver.shows(gpu(0), gpu(1))
    with Asking(driver.variables) as asking:
        asking.devices()
        driver.shows(gpu(0), gpu(1), "lost 0")
        asking.devices()
        driver.shows(gpu(0), gpu(1))
        assert asking.ids() == [uuid(0), uuid(1)]
        assert [line.partition(" ")[0] for line in asking.said] == ["INFO"]
        driver.shows(gpu(0), gpu(1), "lost 0")
        assert asking.ids() == [uuid(1)]
        assert len(asking.said) == 1


def test_a_gpu_that_the_driver_no_longer_lists_is_lost(driver: Driver) -> None:
    driver.shows(gpu(0), gpu(1))
    with Asking(driver.variables) as asking:
        asking.devices()
        driver.shows(gpu(0))
        assert asking.ids() == [uuid(0)]
        assert uuid(1) in asking.said[0]


def test_a_gpu_that_never_answered_is_logged_once(driver: Driver) -> None:
    driver.shows(gpu(0), gpu(1), "lost 1")
    with Asking(driver.variables) as asking:
        assert asking.ids() == [uuid(0)]
        (warning,) = asking.said
        assert "NVIDIA GPU 1" in warning
        assert asking.ids() == [uuid(0)]
        assert asking.said == []


def test_a_failing_driver_gives_no_gpu_and_is_logged_once(driver: Driver) -> None:
    driver.shows("fail 999", gpu(0))
    with Asking(driver.variables) as asking:
        assert asking.ids() == []
        assert len(asking.said) == 1
        assert asking.ids() == []
        assert asking.said == []
        driver.shows(gpu(0))
        assert asking.ids() == [uuid(0)]


def test_the_gpus_of_a_driver_that_fails_later_are_lost(driver: Driver) -> None:
    driver.shows(gpu(0))
    with Asking(driver.variables) as asking:
        asking.devices()
        driver.shows("fail 18", gpu(0))
        assert asking.ids() == []
        driver.shows(gpu(0))
        assert asking.ids() == [uuid(0)]


def test_without_the_library_there_is_no_gpu_and_no_log_line(tmp_path: Path) -> None:
    driver = Driver(nvml.missing(tmp_path), tmp_path / "machine")
    with Asking(driver.variables) as asking:
        assert asking.devices() == []
        assert asking.said == []


# --------------------------------------------------------------------------- llama.cpp's devices


def test_a_build_without_cuda_has_no_gpu(driver: Driver) -> None:
    driver.shows(gpu(0))
    with Asking(driver.variables, offered=[]) as asking:
        assert asking.devices() == []


def test_cuda_devices_are_matched_by_their_bus_id(driver: Driver) -> None:
    driver.shows(gpu(0), gpu(1, free=5))
    offered = [offer(0, "0000:42:00.0"), offer(1, "0000:41:00.0")]
    with Asking(driver.variables, offered) as asking:
        first, second = asking.devices()
    assert (first.index, first.id, first.free_bytes) == (0, uuid(1), 5 * GIB)
    assert (second.index, second.id, second.name) == (1, uuid(0), "Fast 9000")


def test_a_gpu_that_could_not_be_opened_is_matched_by_its_number(driver: Driver) -> None:
    driver.shows(gpu(0, free=0.1), gpu(1))
    variables = driver.variables | {"CUDA_VISIBLE_DEVICES": "1,0"}
    with Asking(variables, [offer(0), offer(1)]) as asking:
        assert asking.ids() == [uuid(1), uuid(0)]


def test_a_gpu_that_nvml_lost_before_the_start_is_left_out(driver: Driver) -> None:
    driver.shows(gpu(0), gpu(1), "lost 0")
    offered = [offer(0, "0000:41:00.0"), offer(1, "0000:42:00.0")]
    with Asking(driver.variables, offered) as asking:
        assert asking.ids() == [uuid(1)]


def test_without_nvml_cudas_names_and_figures_count(tmp_path: Path) -> None:
    driver = Driver(nvml.missing(tmp_path), tmp_path / "machine")
    with Asking(driver.variables, [offer(0, "0000:41:00.0")]) as asking:
        (device,) = asking.devices()
    assert (device.id, device.name, device.vendor) == ("CUDA0", "as CUDA calls it", "nvidia")
    assert (device.total_bytes, device.free_bytes) == (7 * GIB, 6 * GIB)


def test_the_memory_of_an_integrated_gpu_is_main_memory(driver: Driver) -> None:
    driver.shows(gpu(0), "shared 0")
    with Asking(driver.variables, [offer(0, "0000:41:00.0", integrated=True)]) as asking:
        (device,) = asking.devices()
    assert (device.id, device.kind) == (uuid(0), DeviceKind.INTEGRATED)
    assert device.total_bytes == Cpu.read().total_bytes
    assert 0 < device.free_bytes <= device.total_bytes


# --------------------------------------------------------------------------- split GPUs


def test_the_first_instance_of_a_split_gpu_is_the_device(driver: Driver) -> None:
    driver.shows(gpu(0, split=1), instance(0, 2, free=4), instance(0, 5))
    with Asking(driver.variables, [offer(0, "0000:41:00.0")]) as asking:
        (device,) = asking.devices()
    assert (device.id, device.name) == (instance_uuid(0, 2), "Fast MIG 2")
    assert (device.total_bytes, device.free_bytes) == (10 * GIB, 4 * GIB)


@pytest.mark.parametrize("offered", [None, [offer(0, "0000:41:00.0")]])
def test_the_named_instance_of_a_split_gpu_is_the_device(
    driver: Driver, offered: list[BackendDevice] | None
) -> None:
    driver.shows(gpu(0, split=1), instance(0, 0), instance(0, 1))
    variables = driver.variables | {"CUDA_VISIBLE_DEVICES": instance_uuid(0, 1)}
    with Asking(variables, offered) as asking:
        assert asking.ids() == [instance_uuid(0, 1)]


def test_an_instance_has_the_speed_of_its_gpu_in_the_fastest_first_order(driver: Driver) -> None:
    driver.shows(gpu(0, cores=1000), gpu(1, cores=9000, split=1), instance(1, 0))
    for variable, order in (("0", [instance_uuid(1, 0)]), ("1", [uuid(0)])):
        with Asking(driver.variables | {"CUDA_VISIBLE_DEVICES": variable}) as asking:
            assert asking.ids() == order


def test_a_split_gpu_without_instances_is_no_device(driver: Driver) -> None:
    driver.shows(gpu(0, split=1))
    with Asking(driver.variables) as asking:
        assert asking.devices() == []
