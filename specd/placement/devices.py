"""Accelerators that can hold a model, one vendor per file beside this one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    DISCRETE = "discrete"
    INTEGRATED = "integrated"  # its memory is the main memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """id: what `core.EngineSpec.devices` names it by: NVIDIA's UUID, else llama.cpp's name.

    index: its number among those that the daemon may use.  name: what the vendor calls it.
    uuid: NVIDIA's, "" with others.
    """

    vendor: str
    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    id: str = ""
    kind: Kind = Kind.DISCRETE


def devices() -> list[Device]:
    """All accelerators, in the vendors' order; empty without any."""
    from specd.placement import nvidia  # noqa: PLC0415 - vendors import this file for the noun

    return nvidia.devices()
