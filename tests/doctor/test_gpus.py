"""The findings on GPUs: which of hardware, driver and build is missing, and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.core import BackendDevice
from specd.doctor.finding import Finding, Level
from specd.doctor.gpus import BackendDevices, gpus
from specd.placement.nvidia import Driver, Gpu

NVIDIA, AMD, INTEL, STRANGER = "0x10de", "0x1002", "0x8086", "0x1234"
RTX = Gpu(
    index=0,
    bus_id="0000:01:00.0",
    uuid="GPU-1",
    name="RTX 3060",
    total_bytes=12 * 2**30,
    free_bytes=11 * 2**30,
)
CUDA0 = BackendDevice(
    name="CUDA0",
    description="RTX 3060",
    integrated=False,
    backend="CUDA",
    bus_id="0000:01:00.0",
    total_bytes=12 * 2**30,
    free_bytes=11 * 2**30,
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root without any card."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    return tmp_path


def plug(root: Path, vendor: str, of_class: str = "0x030000") -> None:
    device = root / f"sys/bus/pci/devices/0000:{vendor[2:4]}:00.0"
    device.mkdir()
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{of_class}\n")


def found(
    root: Path,
    offered: BackendDevices = (),
    *,
    said: tuple[str, ...] = (),
    nvml: list[Gpu] | None = None,
) -> list[Finding]:
    driver = Driver("570.1", "12.8") if nvml else None
    return list(gpus(offered, said, nvml=lambda: nvml, driver=lambda: driver, igpu=None, root=root))


def test_a_used_gpu_is_listed_with_memory_and_driver(machine: Path) -> None:
    plug(machine, NVIDIA)
    gpu, driver = found(machine, [CUDA0], nvml=[RTX])
    assert gpu.level is driver.level is Level.OK
    assert "RTX 3060" in gpu.words
    assert "11.0 of 12.0 GiB" in gpu.words
    assert driver.words == "NVIDIA 570.1, for CUDA up to 12.8"


def test_a_machine_without_a_gpu_is_no_problem(machine: Path) -> None:
    plug(machine, STRANGER)
    plug(machine, NVIDIA, of_class="0x040300")  # its sound
    [finding] = found(machine)
    assert finding.level is Level.ABSENT
    assert "no GPU" in finding.words


@pytest.mark.parametrize(
    "vendor,offered,nvml,words,remedy",
    [
        (NVIDIA, (), None, "its driver does not answer", "install NVIDIA's driver"),
        (NVIDIA, (), [RTX], "cannot use it", "SPECD_ACCEL=cuda make install"),
        (AMD, (), None, "cannot use it", "SPECD_ACCEL=rocm make install"),
        (AMD, None, None, "does not report its devices", "OLLAMA_DEBUG=1"),
    ],
)
def test_an_unused_gpu_is_a_problem(
    machine: Path,
    vendor: str,
    offered: BackendDevices,
    nvml: list[Gpu] | None,
    words: str,
    remedy: str,
) -> None:
    plug(machine, vendor)
    finding = found(machine, offered, nvml=nvml, said=("the driver is too old",))[-1]
    # Without llama.cpp's result, NVML's result alone would pass.
    assert finding.level is Level.PROBLEM
    assert words in finding.words
    assert "the driver is too old" in finding.words
    assert remedy in finding.remedy


def test_a_closed_device_node_is_reported_first(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug(machine, AMD)
    node = machine / "dev/dri/renderD128"
    node.parent.mkdir()
    node.touch()
    (machine / "dev/kfd").touch()
    monkeypatch.setattr("os.access", lambda path, _mode: path != node)
    finding = found(machine)[-1]
    assert finding.level is Level.PROBLEM
    assert f"{node} cannot be opened" in finding.words
    assert "DeviceAllow" in finding.remedy


def test_an_integrated_gpu_beside_the_cpu_is_no_problem(machine: Path) -> None:
    plug(machine, INTEL)
    [finding] = found(machine)
    assert finding.level is Level.OK
    assert "SPECD_ACCEL=vulkan" in finding.words


def test_next_to_a_card_an_integrated_gpu_is_not_reported(machine: Path) -> None:
    plug(machine, INTEL)
    plug(machine, AMD)
    [finding] = found(machine)
    assert "AMD" in finding.words
