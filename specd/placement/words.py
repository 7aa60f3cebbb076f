"""A placement in a line that the owner of the machine understands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from specd import core
from specd.placement.estimate import Footprint
from specd.placement.plan import CPU
from specd.placement.planner import Machine

_MIB, _GIB = 2**20, 2**30


def short_name(weights: str) -> str:
    """A file's name; of a blob as much of its digest as people tell them apart by."""
    return re.sub(r"^(sha256-\w{12})\w+$", r"\1", Path(weights).name)


def in_words(
    request: core.PlacementRequest,
    placement: core.Placement,
    machine: Machine,
    needed: Footprint,
) -> str:
    """needed: by the target, as it was asked for."""
    name = short_name(request.spec.weights)
    if not placement.fits:
        free = ", ".join(_free(machine))
        return (
            f"{name} needs about {_size(needed.total_bytes)}, and free are {free}:"
            " another model has to leave first"
        )
    spec = placement.spec
    pair = f" with {spec.drafter_name or 'its drafter'}" if spec.drafter else ""
    parts = [f"{name}{pair}: {' and '.join(_places(placement, machine))}"]
    if spec.devices and 0 <= spec.n_gpu_layers <= len(needed.blocks):
        n_there = max(spec.n_gpu_layers - 1, 0)  # the output is one, too
        parts.append(f"{n_there} of {len(needed.blocks)} layers on the GPU")
    parts.append(f"{spec.n_ctx} tokens of context")
    if spec.n_ctx < request.spec.n_ctx:
        parts[-1] += f", for {request.spec.n_ctx} find no room"
    if request.spec.drafter and not spec.drafter:
        parts.append(f"no drafter, for {spec.no_pair_detail}")
    return "; ".join(parts)


def _places(placement: core.Placement, machine: Machine) -> Iterator[str]:
    devices = {device.id: device for device in machine.devices}
    for where, n_bytes in sorted(placement.bytes_by_device, key=lambda place: place[0] == CPU):
        device = devices.get(where)
        place = f"on {device.name} ({device.index})" if device is not None else "in main memory"
        free = device.free_bytes if device is not None else machine.ram_bytes
        yield f"{_size(n_bytes)} of {_size(free)} free {place}"


def _free(machine: Machine) -> Iterator[str]:
    for device in machine.devices:
        yield f"{_size(device.free_bytes)} on {device.name} ({device.index})"
    if not machine.devices:
        yield f"{_size(machine.ram_bytes)} in main memory"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.1f} GiB" if n_bytes >= _GIB else f"{n_bytes / _MIB:.0f} MiB"
