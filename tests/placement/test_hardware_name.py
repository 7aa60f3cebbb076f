"""Check the name of the hardware, for which a measured speed is valid."""

from __future__ import annotations

from pathlib import Path

from specd.placement import Device, cpu_name, machine_name

GPU = Device(vendor="v", index=0, name="Fast 9000", uuid="u", total_bytes=2, free_bytes=1)


def test_a_machine_is_its_processor_and_its_accelerators(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Quick CPU\nmodel name\t: Quick CPU\n")
    assert machine_name([], cpuinfo) == "Quick CPU"
    assert machine_name([GPU, GPU], cpuinfo) == "Quick CPU; Fast 9000; Fast 9000"


def test_a_processor_without_a_name_is_called_by_its_architecture(tmp_path: Path) -> None:
    assert cpu_name(tmp_path / "none") != ""
    (tmp_path / "cpuinfo").write_text("model name\t:\n")
    assert cpu_name(tmp_path / "cpuinfo") == cpu_name(tmp_path / "none")
