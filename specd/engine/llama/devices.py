"""The GPUs of llama.cpp's backends, by functions of ggml that the bindings lack."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from specd.core import BackendDevice
from specd.engine.llama.library import native_function, start
from specd.errors import LoadFailed
from specd.ipc.parent_death import die_with_parent

# ggml-backend.h, `enum ggml_backend_dev_type`; the other types are CPUs and their accelerators.
_GPU, _INTEGRATED = 1, 2


class _Capabilities(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_bool)
        for name in ("asynchronous", "host_buffer", "buffer_from_host_ptr", "events", "mmap")
    ]


class _Properties(ctypes.Structure):
    """The struct `ggml_backend_dev_props`, with the layout of `library.VERSION`."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", _Capabilities),
    ]


_HANDLE = ctypes.c_void_p


_count = native_function("ggml_backend_dev_count", ctypes.c_size_t)
_get = native_function("ggml_backend_dev_get", _HANDLE, ctypes.c_size_t)
by_name = native_function("ggml_backend_dev_by_name", _HANDLE, ctypes.c_char_p)
_type = native_function("ggml_backend_dev_type", ctypes.c_int, _HANDLE)
_name = native_function("ggml_backend_dev_name", ctypes.c_char_p, _HANDLE)
_description = native_function("ggml_backend_dev_description", ctypes.c_char_p, _HANDLE)
_backend = native_function("ggml_backend_dev_backend_reg", _HANDLE, _HANDLE)
_backend_name = native_function("ggml_backend_reg_name", ctypes.c_char_p, _HANDLE)
_get_properties = native_function(
    "ggml_backend_dev_get_props", None, _HANDLE, ctypes.POINTER(_Properties)
)


def gpus() -> list[int]:
    """Return the handles (`ggml_backend_dev_t`) of all GPUs, in llama.cpp's order."""
    start()
    return [gpu for gpu in map(_get, range(_count())) if _type(gpu) in (_GPU, _INTEGRATED)]


def device_address(name: str) -> int:
    """Return a device's handle by llama.cpp's name.  Raises LoadFailed if there is none."""
    if address := by_name(name.encode()):
        return int(address)
    available = ", ".join(describe_device(gpu).name for gpu in gpus())
    raise LoadFailed(f"device {name} not found: llama.cpp finds {available or 'no GPU'}")


def describe_device(gpu: int) -> BackendDevice:
    """Return what is known of a GPU without opening it: no memory sizes and no bus id."""
    return BackendDevice(
        name=_text(_name(gpu)),
        backend=_text(_backend_name(_backend(gpu))),
        description=_text(_description(gpu)),
        integrated=_type(gpu) == _INTEGRATED,
    )


def open_device(gpu: int) -> BackendDevice:
    """Open a GPU and return all facts on it.

    CUDA creates a context for that, and aborts the process if the GPU has no memory left for one.
    """
    properties = _Properties()
    _get_properties(gpu, ctypes.byref(properties))
    return replace(
        describe_device(gpu),
        bus_id=_text(properties.device_id).lower(),
        total_bytes=properties.memory_total,
        free_bytes=properties.memory_free,
    )


def print_gpus() -> None:
    """Print all GPUs as a line of JSON before they are opened, and another one after it."""
    die_with_parent()
    found = gpus()
    _print_line([describe_device(gpu) for gpu in found])
    if found:
        _print_line([open_device(gpu) for gpu in found])


def _print_line(described: Sequence[BackendDevice]) -> None:
    sys.stdout.write(msgspec.json.encode(described).decode() + "\n")
    sys.stdout.flush()


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")
