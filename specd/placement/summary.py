"""Describe a placement in one log line."""

from __future__ import annotations

from collections.abc import Iterator

from specd import core
from specd.placement.byte_units import size
from specd.placement.estimate import Footprint
from specd.placement.plan import CPU
from specd.placement.planner import MachineMemory
from specd.placement.shortage import name_of


def describe_placement(
    request: core.PlacementRequest,
    placement: core.Placement,
    machine: MachineMemory,
    needed: Footprint,
) -> str:
    """Return the log line.  needed: the target's footprint at the requested context."""
    if not placement.fits:
        return f"{placement.shortage}: another model has to be unloaded first"
    spec = placement.spec
    pair = f" with {spec.drafter_name or 'its drafter'}" if spec.drafter else ""
    places = " and ".join(_places(placement, machine))
    parts = [f"{name_of(request)}{pair} takes {places}"]
    if spec.devices and 0 <= spec.n_gpu_layers <= len(needed.blocks):
        n_there = max(spec.n_gpu_layers - 1, 0)  # the output is one, too
        parts.append(f"{n_there} of {len(needed.blocks)} layers on the GPU")
    parts.append(f"{spec.n_ctx} tokens of context")
    if spec.n_ctx < request.spec.n_ctx:
        parts[-1] += f" ({request.spec.n_ctx} do not fit)"
    if request.spec.drafter and not spec.drafter:
        parts.append(f"no drafter, because {spec.no_pair_detail}")
    if placement.shortage:
        parts.append("that is more than is free; it is tried anyway")
    return "; ".join(parts)


def _places(placement: core.Placement, machine: MachineMemory) -> Iterator[str]:
    devices = {device.id: device for device in machine.devices}
    for where, n_bytes in sorted(placement.bytes_by_device, key=lambda place: place[0] == CPU):
        device = devices.get(where)
        place = f"on {device.name} ({device.index})" if device is not None else "in main memory"
        free = device.free_bytes if device is not None else machine.ram_bytes
        yield f"{size(n_bytes)} of {size(free)} free {place}"
