"""The GPUs of llama.cpp's backends, by functions of ggml that the bindings lack."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_cpp._ggml import libggml

from specd.core import BackendDevice
from specd.engine.llama.library import start

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


def _function(name: str, arguments: Sequence[Any], result: Any) -> Any:
    function: Any = libggml[name]
    function.argtypes, function.restype = arguments, result
    return function


_count = _function("ggml_backend_dev_count", (), ctypes.c_size_t)
_get = _function("ggml_backend_dev_get", (ctypes.c_size_t,), _HANDLE)
_type = _function("ggml_backend_dev_type", (_HANDLE,), ctypes.c_int)
_name = _function("ggml_backend_dev_name", (_HANDLE,), ctypes.c_char_p)
_description = _function("ggml_backend_dev_description", (_HANDLE,), ctypes.c_char_p)
_backend = _function("ggml_backend_dev_backend_reg", (_HANDLE,), _HANDLE)
_backend_name = _function("ggml_backend_reg_name", (_HANDLE,), ctypes.c_char_p)
_get_properties = _function(
    "ggml_backend_dev_get_props", (_HANDLE, ctypes.POINTER(_Properties)), None
)


def gpus() -> list[int]:
    """Return the handles (`ggml_backend_dev_t`) of all GPUs, in llama.cpp's order."""
    start()
    return [gpu for gpu in map(_get, range(_count())) if _type(gpu) in (_GPU, _INTEGRATED)]


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


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")
