"""The GPUs that ggml reports, read through its own functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from specd.core import BackendDevice
from specd.engine.devices import is_cpu_only
from specd.engine.llama import devices

ROOT = Path(__file__).parents[3]

#: Registers two GPUs with the real ggml, as a backend does, and lets the engine tell of them.
_WITH_TWO_GPUS = """
import ctypes, sys
from llama_cpp.llama_cpp import _lib as libggml
from specd.engine.llama import devices
from specd.engine.llama.devices import _Properties

class Device(ctypes.Structure):  # ggml-backend-impl.h: struct ggml_backend_device
    _fields_ = [("functions", ctypes.c_void_p * 15), ("backend", ctypes.c_void_p),
                ("context", ctypes.c_void_p)]

class Backend(ctypes.Structure):  # struct ggml_backend_reg
    _fields_ = [("version", ctypes.c_int), ("functions", ctypes.c_void_p * 4),
                ("context", ctypes.c_void_p)]

kept = []

def function(result, *arguments):
    def keep(body):
        kept.append(ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(body))
        return ctypes.cast(kept[-1], ctypes.c_void_p)
    return keep

def make(name, kind, bus_id):
    @function(ctypes.c_void_p, ctypes.POINTER(_Properties))
    def tell(_device, told):
        if bus_id == b"full":
            sys.stderr.write("no room for a context\\n")
            sys.stderr.flush()
            __import__("os")._exit(134)
        told[0] = _Properties(name, b"Fast", 700, 900, kind, bus_id)
        return None
    device = Device(backend=ctypes.addressof(backend))
    device.functions[0] = function(ctypes.c_char_p)(lambda _device: name)
    device.functions[1] = function(ctypes.c_char_p)(lambda _device: b"Fast")
    device.functions[3] = function(ctypes.c_int)(lambda _device: kind)
    device.functions[4] = tell
    kept.append(device)
    return device

backend = Backend(version=2)
backend.functions[0] = function(ctypes.c_char_p)(lambda _backend: b"TEST")
register = libggml["ggml_backend_device_register"]
register.argtypes, register.restype = [ctypes.c_void_p], None
for device in (make(b"TEST0", 1, sys.argv[1].encode() or None), make(b"TEST1", 2, None)):
    register(ctypes.addressof(device))
devices.print_gpus()
"""


def reported_devices(bus_id: str) -> tuple[int, list[list[dict[str, object]]]]:
    """Return the exit status, and the lists in the order in which they were printed."""
    done = subprocess.run(
        [sys.executable, "-c", _WITH_TWO_GPUS, bus_id],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_gpus_are_listed_with_kind_bus_id_and_memory() -> None:
    status, (by_name, open_device) = reported_devices("0000:C1:00.0")
    assert status == 0
    assert [(gpu["name"], gpu["integrated"]) for gpu in by_name] == [
        ("TEST0", False),
        ("TEST1", True),
    ]
    assert open_device[0] == {
        "name": "TEST0",
        "backend": "TEST",
        "description": "Fast",
        "integrated": False,
        "bus_id": "0000:c1:00.0",
        "total_bytes": 900,
        "free_bytes": 700,
    }
    assert (open_device[1]["bus_id"], open_device[1]["integrated"]) == ("", True)


def test_names_are_listed_before_a_full_gpu_is_opened() -> None:
    status, (by_name,) = reported_devices("full")
    assert status != 0
    assert [gpu["name"] for gpu in by_name] == ["TEST0", "TEST1"]


@pytest.mark.parametrize(
    "files, alone",
    [
        (["libggml.so", "libggml-base.so.0", "libggml-cpu.so", "libggml-cpu-haswell.so"], True),
        (["libggml-base.so", "libggml-cpu.so", "libggml-cuda.so"], False),
        (["libggml-base.dylib", "libggml-blas.dylib", "libggml-metal.dylib"], False),
        (["ggml-base.dll", "ggml-cpu.dll", "ggml-vulkan.dll"], False),
        (["libllama.so"], False),
        ([], False),
    ],
)
def test_a_cpu_only_build_is_recognised_by_its_files(
    tmp_path: Path, files: list[str], alone: bool
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert is_cpu_only(tmp_path) is alone


def test_the_files_of_this_build_agree_with_its_gpus() -> None:
    assert not (is_cpu_only() and devices.gpus())


def test_the_cpu_is_no_gpu_and_its_properties_are_read_correctly() -> None:
    processors = [devices._get(i) for i in range(devices._count())]  # noqa: SLF001 - ggml's own list
    (cpu,) = [p for p in processors if devices.describe_device(p).backend == "CPU"]
    assert cpu not in devices.gpus()
    known = devices.open_device(cpu)
    assert isinstance(known, BackendDevice)
    assert known.total_bytes == psutil.virtual_memory().total
    assert (known.bus_id, known.integrated) == ("", False)
