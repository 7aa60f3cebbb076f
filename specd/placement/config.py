"""What the settings say of where models lie."""

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
    """draft_device: auto, cpu, or a device's id.  overhead_bytes: of every GPU."""

    overhead_bytes: int = 0
    spread: bool = False
    draft_device: str = AUTO


def placement_config(settings: Settings, devices: Sequence[Device]) -> PlacementConfig:
    """Raises BadSetting where the drafters' device is not there."""
    return PlacementConfig(
        overhead_bytes=settings.gpu_overhead_bytes,
        spread=settings.sched_spread,
        draft_device=_draft_device(settings.draft_device, devices),
    )


def _draft_device(asked: str, devices: Sequence[Device]) -> str:
    """By its number, llama.cpp's name, or its id or the beginning of it, as CUDA takes UUIDs."""
    if asked in {AUTO, ON_CPU}:
        return asked
    if not devices:
        raise errors.BadSetting(
            f"SPECD_DRAFT_DEVICE is {asked}, and this machine has no GPU that llama.cpp can use;"
            " auto and cpu are always possible"
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
        f"SPECD_DRAFT_DEVICE is {asked} and {fault}:"
        f" there is {there}; auto and cpu are always possible"
    )
