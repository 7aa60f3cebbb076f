"""NVIDIA GPUs through NVML, the source of truth for their memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from specd.placement.devices import Device

log = logging.getLogger(__name__)


def devices(nvml: Any = pynvml) -> list[Device]:
    """Every GPU the driver shows and CUDA_VISIBLE_DEVICES leaves; none without driver or library.

    nvml: the module of the bindings, or what stands in for it.
    """
    try:
        with _session(nvml):
            found = [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        log.debug("no NVIDIA GPU: %s", error)
        return []
    return [device for device in found if _is_visible(device)]


@contextmanager
def _session(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Device(
        vendor="nvidia",
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings give bytes


def _is_visible(device: Device) -> bool:
    """NVML shows all GPUs; CUDA, and so llama.cpp, only those of CUDA_VISIBLE_DEVICES."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return True
    for entry in (part.strip() for part in variable.split(",")):
        if entry == str(device.index) or (entry and device.uuid.startswith(entry)):
            return True
        if entry.startswith(("GPU-", "MIG-")) or entry.isdigit():
            continue
        return False  # CUDA reads up to the first entry that is no device
    return False
