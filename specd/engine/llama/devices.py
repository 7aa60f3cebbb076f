"""The GPUs that llama.cpp's backends offer; the bindings leave these functions of ggml out."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import llama_cpp
from llama_cpp._ctypes_extensions import load_shared_library

from specd.core import BackendDevice
from specd.engine.llama.library import start

# ggml-backend.h, `enum ggml_backend_dev_type`; the others are processors and what helps them.
_GPU, _INTEGRATED = 1, 2


class _Capabilities(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_bool)
        for name in ("asynchronous", "host_buffer", "buffer_from_host_ptr", "events", "mmap")
    ]


class _Properties(ctypes.Structure):
    """`ggml_backend_dev_props`, as `library.VERSION` lays it out."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", _Capabilities),
    ]


_FUNCTIONS = (
    ("ggml_backend_dev_count", (), ctypes.c_size_t),
    ("ggml_backend_dev_get", (ctypes.c_size_t,), ctypes.c_void_p),
    ("ggml_backend_dev_name", (ctypes.c_void_p,), ctypes.c_char_p),
    ("ggml_backend_dev_description", (ctypes.c_void_p,), ctypes.c_char_p),
    ("ggml_backend_dev_type", (ctypes.c_void_p,), ctypes.c_int),
    ("ggml_backend_dev_backend_reg", (ctypes.c_void_p,), ctypes.c_void_p),
    ("ggml_backend_reg_name", (ctypes.c_void_p,), ctypes.c_char_p),
    ("ggml_backend_dev_get_props", (ctypes.c_void_p, ctypes.POINTER(_Properties)), None),
)


@functools.cache
def _ggml() -> ctypes.CDLL:
    """llama.cpp's own copy: the bindings have loaded it from the same place."""
    start()
    beside_bindings = Path(llama_cpp.__file__).resolve().parent / "lib"
    ggml: ctypes.CDLL = load_shared_library(
        "ggml", Path(os.environ.get("LLAMA_CPP_LIB_PATH", beside_bindings))
    )
    for name, arguments, result in _FUNCTIONS:
        function = getattr(ggml, name)
        function.argtypes, function.restype = arguments, result
    return ggml


def gpus() -> list[int]:
    """Handles (`ggml_backend_dev_t`) of all GPUs, in llama.cpp's order."""
    ggml = _ggml()
    found = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    return [handle for handle in found if ggml.ggml_backend_dev_type(handle) in (_GPU, _INTEGRATED)]


def named(gpu: int) -> BackendDevice:
    """What is known of it without opening it."""
    ggml = _ggml()
    return BackendDevice(
        name=_text(ggml.ggml_backend_dev_name(gpu)),
        backend=_text(ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(gpu))),
        description=_text(ggml.ggml_backend_dev_description(gpu)),
        integrated=ggml.ggml_backend_dev_type(gpu) == _INTEGRATED,
    )


def opened(gpu: int) -> BackendDevice:
    """All of it.  CUDA makes a context to find out, and aborts where there is no room for one."""
    properties = _Properties()
    _ggml().ggml_backend_dev_get_props(gpu, ctypes.byref(properties))
    known = named(gpu)
    return BackendDevice(
        name=known.name,
        backend=known.backend,
        description=known.description,
        integrated=known.integrated,
        bus_id=_text(properties.device_id).lower(),
        total_bytes=properties.memory_total,
        free_bytes=properties.memory_free,
    )


def _text(words: bytes | None) -> str:
    return (words or b"").decode(errors="replace")
