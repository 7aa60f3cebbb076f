"""NVIDIA's driver without a GPU: `nvml.c`, compiled as the library that pynvml loads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

GIB = 2**30
_SOURCE = Path(__file__).with_suffix(".c")
_LIBRARY = "libnvidia-ml.so.1"


def compiled(folder: Path) -> Path:
    """Return the folder with the compiled library in it.

    There is no fallback without a compiler, because llama.cpp needs one too.
    """
    compiler = os.environ.get("CC", "cc").split()
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*compiler, *flags, "-o", folder / _LIBRARY, _SOURCE], check=True)
    return folder


def missing(folder: Path) -> Path:
    """Return a folder whose library exists but cannot be loaded."""
    (folder / _LIBRARY).write_bytes(b"")
    return folder


class Driver:
    """library: by `compiled` or `missing`.  What the driver shows may change at any time."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.variables = {"LD_LIBRARY_PATH": str(library), "STUB_NVML": str(file)}
        self.shows()

    def shows(self, *lines: str) -> None:
        """Replace the driver's state; nvml.c defines the format of each line."""
        draft = self._file.with_suffix(".draft")
        draft.write_text("".join(line + "\n" for line in lines))
        draft.replace(self._file)


def gpu(index: int, *, free: float = 24, total: int = 24, cores: int = 5000, split: int = 0) -> str:
    """Return the line of a GPU; sizes in GiB.  GPU 0 is on bus 0x41, GPU 1 on 0x42."""
    sizes = f"{total * GIB} {int(free * GIB)}"
    return f"gpu {index} {0x41 + index} {uuid(index)} {sizes} {cores} {split} Fast {9000 + index}"


def instance(index: int, place: int, *, free: float = 10, total: int = 10) -> str:
    """Return the line of an instance of a split GPU, sizes in GiB."""
    sizes = f"{total * GIB} {int(free * GIB)}"
    return f"instance {index} {place} {instance_uuid(index, place)} {sizes} Fast MIG {place}"


def uuid(index: int) -> str:
    return f"GPU-{index}aaaaaaa-0000"


def instance_uuid(index: int, place: int) -> str:
    return f"MIG-{index}{place}bbbbbb-0000"
