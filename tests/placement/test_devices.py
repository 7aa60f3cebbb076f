"""NVML, with a driver made of plain values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NoReturn

import pytest

from specd.placement import devices, nvidia


class NVMLError(Exception):
    pass


class Driver:
    """Two GPUs, as the bindings show them."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.n_open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own name
        self.n_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.n_open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:  # noqa: N802
        return b"old" if handle == 0 else "new"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}abc"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=100 + handle, free=50)


class NoDriver(Driver):
    def nvmlInit(self) -> NoReturn:  # noqa: N802
        raise NVMLError("NVML Shared Library Not Found")


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_every_gpu_is_listed_with_its_memory() -> None:
    driver = Driver()
    first, second = nvidia.devices(driver)
    assert (first.name, first.uuid, first.total_bytes) == ("old", "GPU-0abc", 100)
    assert (second.name, second.index, second.free_bytes) == ("new", 1, 50)
    assert driver.n_open == 0


def test_without_a_driver_there_is_no_gpu() -> None:
    assert nvidia.devices(NoDriver()) == []


@pytest.mark.contract("env.devices")
@pytest.mark.parametrize(
    "variable, indices",
    [("1", [1]), ("", []), ("GPU-0", [0]), ("0,1", [0, 1]), ("-1,0", []), ("0,-1,1", [0])],
)
def test_what_cuda_does_not_see_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, variable: str, indices: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert [device.index for device in nvidia.devices(Driver())] == indices


def test_this_machine_can_be_asked() -> None:
    assert all(device.total_bytes > 0 for device in devices())
