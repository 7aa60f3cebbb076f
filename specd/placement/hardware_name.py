"""What a measured speed holds for: the processor and the accelerators, by name."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from specd.placement.devices import Device


def machine_name(devices: Sequence[Device], cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The same on every start of the same machine, another where a speed may be another."""
    return "; ".join([cpu_name(cpuinfo), *(device.name for device in devices)])


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The marketing name where Linux says it, else the architecture's."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
