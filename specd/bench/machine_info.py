"""The machine and versions that a bench ran on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Self

import specd
from specd.placement import Cpu, Devices, cpu_name
from specd.runner import probe


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """The machine and versions.  load_average: runnable tasks over the last minute."""

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
            cpu=cpu_name(),
            n_cores=cpu.n_cores,
            memory_bytes=cpu.total_bytes,
            accelerators=tuple(device.name for device in Devices(probe())()),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            specd=specd.__version__,
            llama_cpp_python=metadata.version("llama-cpp-python"),
            load_average=os.getloadavg()[0],
        )
