"""Name the hardware that a measured speed belongs to: processor and accelerators."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from specd.placement.devices import Device


def machine_name(devices: Sequence[Device], cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the names of processor and GPUs, joined by "; "; equal names mean equal hardware."""
    return "; ".join([cpu_name(cpuinfo), *(device.name for device in devices)])


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's product name if Linux knows it, else its architecture."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
