"""Accelerators that can hold a model, one vendor per file beside this one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """name: what the vendor calls it.  uuid: stable across reboots, unlike `index`."""

    vendor: str
    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int


def devices() -> list[Device]:
    """All accelerators, in the vendors' order; empty without any."""
    from specd.placement import nvidia  # noqa: PLC0415 - vendors import this file for the noun

    return nvidia.devices()
