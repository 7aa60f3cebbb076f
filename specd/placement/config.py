"""The settings that decide where models are placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specd import errors
from specd.placement.devices import Device
from specd.settings import Settings

#: What SPECD_DRAFT_DEVICE may be instead of a device.
AUTO: Final = "auto"
ON_CPU: Final = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """Settings for placement.

    overhead_bytes: memory that stays free on every GPU.
    spread: use as many GPUs as possible instead of as few.
    draft_device: auto, cpu, or a device's id.
    """

    overhead_bytes: int = 0
    spread: bool = False
    draft_device: str = AUTO


def placement_config(settings: Settings, devices: Sequence[Device]) -> PlacementConfig:
    """Return the placement settings; raise BadSetting if the drafters' device does not exist."""
    return PlacementConfig(
        overhead_bytes=settings.gpu_overhead_bytes,
        spread=settings.sched_spread,
        draft_device=_draft_device(settings.draft_device, devices),
    )


def _draft_device(asked: str, devices: Sequence[Device]) -> str:
    """Return auto, cpu, or the id of the device that `asked` names; raise BadSetting if none.

    asked: a number, llama.cpp's name, or an id or the start of it, as CUDA accepts UUIDs.
    """
    if asked in {AUTO, ON_CPU}:
        return asked
    if not devices:
        raise errors.BadSetting(
            f"SPECD_DRAFT_DEVICE is {asked}, but this machine has no GPU that llama.cpp can use;"
            " set it to auto or cpu"
        )
    found = [
        device.id
        for device in devices
        if asked in {str(device.index), device.id}
        or (device.uuid and asked == f"CUDA{device.index}")
        or (not asked.isdigit() and device.id.startswith(asked))
    ]
    exact = [name for name in found if name == asked]
    if len(exact or found) == 1:
        return (exact or found)[0]
    there = ", ".join(f"{device.index} ({device.name}, {device.id})" for device in devices)
    fault = "names several devices" if found else "names no device"
    raise errors.BadSetting(
        f"SPECD_DRAFT_DEVICE is {asked}, which {fault}; set it to auto, cpu, or one of: {there}"
    )
