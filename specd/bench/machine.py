"""Where and with what a bench was run: facts that its figures mean nothing without."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Self

import specd
from specd.placement import Cpu, devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """load_average: runnable tasks over the last minute; what ran beside the bench disturbs it."""

    cpu: str
    n_cores: int
    memory_bytes: int
    accelerators: tuple[str, ...]
    system: str
    python: str
    specd: str
    llama_cpp_python: str
    load_average: float

    @classmethod
    def read(cls) -> Self:
        cpu = Cpu.read()
        return cls(
            cpu=_cpu_name(),
            n_cores=cpu.n_cores,
            memory_bytes=cpu.total_bytes,
            accelerators=tuple(device.name for device in devices()),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            specd=specd.__version__,
            llama_cpp_python=metadata.version("llama-cpp-python"),
            load_average=os.getloadavg()[0],
        )


def _cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The marketing name where Linux says it, else the architecture's."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
