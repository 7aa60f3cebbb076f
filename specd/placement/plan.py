"""Turn a planner's choice into a placement: devices, layers, context, drafter.

Pure: takes free and needed bytes and returns a placement.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from specd import core
from specd.placement.config import ON_CPU, PlacementConfig
from specd.placement.planner import SHARE, LayoutPlan, MachineMemory, Model, Planner
from specd.placement.shortage import describe_missing_drafter, describe_shortage

#: The name of main memory in `Placement.bytes_by_device`.
CPU: Final = "CPU"
#: The value of `EngineSpec.n_gpu_layers` that puts all layers on devices.
ALL_LAYERS: Final = -1

#: Share of the memory that a refused engine needed, up to which the machine is trusted.
REFUSED_MEMORY_SHARE: Final = 0.75


def plan(
    request: core.PlacementRequest,
    target: Model,
    drafter: Model | None,
    machine: MachineMemory,
    placement_config: PlacementConfig,
) -> core.Placement:
    """Return the placement of a model; raise InvalidOption if `main_gpu` names no existing GPU."""
    if request.n_refused_alone and request.give_up is core.GiveUp.ANYTHING:
        machine = _limit_to_refused(request, target, drafter, machine, placement_config)
        request = replace(request, n_refusals=request.n_refusals - request.n_refused_alone)
    planner = Planner(request, target, drafter, machine, placement_config)
    found = planner.plan()
    if found is None:
        return core.Placement(
            spec=request.spec, fits=False, shortage=describe_shortage(planner, found)
        )
    used_bytes = planner.used_bytes(found.layout, found.n_ctx, found.drafts)
    devices = machine.devices
    return core.Placement(
        spec=_spec(planner, found),
        fits=True,
        bytes_by_device=tuple(
            (CPU, n_bytes)
            if at is None
            else (devices[at].id, n_bytes + machine.process_bytes_on(devices[at]))
            for at, n_bytes in used_bytes.items()
        ),
        shortage="" if found.fits else describe_shortage(planner, found),
    )


def _limit_to_refused(
    request: core.PlacementRequest,
    target: Model,
    drafter: Model | None,
    machine: MachineMemory,
    placement_config: PlacementConfig,
) -> MachineMemory:
    """Return the machine, capped to a share of what the refused engine needed.

    It refused memory to an engine that was alone, so it has less than it reports.
    """
    first = Planner(replace(request, n_refusals=0), target, drafter, machine, placement_config)
    found = first.plan()
    assert found is not None, "there is always a plan if anything may be given up"
    used_bytes = first.used_bytes(found.layout, found.n_ctx, found.drafts)
    share = REFUSED_MEMORY_SHARE**request.n_refused_alone
    if not found.layout.devices:
        ram_bytes = min(machine.ram_bytes, int(share * used_bytes[None] / SHARE))
        return replace(machine, ram_bytes=ram_bytes)
    devices = list(machine.devices)
    for at in found.layout.devices:
        device = devices[at]
        free = min(device.free_bytes, device.total_bytes)
        less = max(first.max_capacities[at] - int(share * used_bytes[at]), 0)
        devices[at] = replace(device, free_bytes=free - less)
    return replace(machine, devices=tuple(devices))


def _spec(planner: Planner, found: LayoutPlan) -> core.EngineSpec:
    spec, layout = planner.request.spec, found.layout
    if spec.drafter is not None and not found.drafts:
        spec = replace(
            spec,
            drafter=None,
            drafter_name="",
            pair_source="",
            max_draft=None,
            no_pair_reason=core.NoPair.NO_VRAM,
            no_pair_detail=describe_missing_drafter(planner, found),
        )
    there = planner.machine.devices
    if not there:
        draft_on_cpu = found.drafts and planner.placement_config.draft_device == ON_CPU
        if planner.machine.is_complete:  # there are no devices, whatever the options ask for
            spec = replace(spec, devices=(), n_gpu_layers=ALL_LAYERS, main_gpu=None)
        return replace(spec, n_ctx=found.n_ctx, draft_on_cpu=draft_on_cpu)
    shares = dict(layout.layers)
    splits = len(layout.devices) > 1
    return replace(
        spec,
        n_ctx=found.n_ctx,
        n_gpu_layers=ALL_LAYERS if _holds_all(planner, found) else layout.n_layers,
        # With a single device there is nothing to choose.
        main_gpu=spec.main_gpu if shares and len(there) > 1 else None,
        devices=tuple(there[at].id for at in layout.devices),
        tensor_split=tuple(float(shares.get(at, 0)) for at in layout.devices) if splits else (),
        draft_device=_draft_device(planner, found),
        draft_on_cpu=found.drafts and bool(shares) and layout.drafter is None,
    )


def _draft_device(planner: Planner, found: LayoutPlan) -> int | None:
    """Return the drafter's index in the spec's devices.

    Return None if it is in main memory, or on the one device that holds the whole target.
    """
    layout = found.layout
    if not found.drafts or layout.drafter is None:
        return None
    if _holds_all(planner, found) and len(layout.devices) == 1:
        return None
    return layout.devices.index(layout.drafter)


def _holds_all(planner: Planner, found: LayoutPlan) -> bool:
    return found.layout.n_layers > len(planner.target(found.n_ctx).blocks)
