"""Place a model in the memory that is free now, next to the loaded ones."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specd import core
from specd.placement.backend_devices import DeviceKind
from specd.placement.config import PlacementConfig
from specd.placement.cpu import Cpu
from specd.placement.devices import Device, devices
from specd.placement.estimate import MIB, Footprint
from specd.placement.memory_corrections import MemoryCorrections
from specd.placement.memory_estimator import MemoryEstimator, Simulate
from specd.placement.plan import CPU, plan
from specd.placement.planner import PROCESS_BYTES, MachineMemory, Model
from specd.placement.resident_usage import ResidentUsage, sum_resident_usage
from specd.placement.shortage import name_of, size
from specd.store.shape import Shape

log = logging.getLogger(__name__)

#: Waits for the driver to free the memory of a process that has ended.
_PAUSES_S: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.5)
#: Bytes by which less is free than expected before the driver is waited for.
_LATE_BYTES: Final = 256 * MIB
#: Most placements to remember until their engines have loaded.
_MAX_LOADING: Final = 16


@dataclass(frozen=True, slots=True)
class _PlacementRecord:
    """A placement whose engine has not loaded yet.

    spec: as placed.  devices: their state before the load.
    """

    spec: core.EngineSpec
    n_refusals: int
    devices: tuple[Device, ...]


class Placer:
    """Places models and learns from what they really take.

    Blocks.  Safe to use from several threads, which wait for each other.
    """

    def __init__(
        self,
        shape: Callable[[Path], Shape],
        simulate: Simulate = lambda loads: [None] * len(loads),
        *,
        placement_config: PlacementConfig = PlacementConfig(),  # noqa: B008 - it is frozen
        corrections: MemoryCorrections | None = None,
        devices: Callable[[], Sequence[Device]] = devices,
        is_complete: Callable[[], bool] = lambda: False,
        cpu: Callable[[], Cpu] = Cpu.read,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep the sources; nothing is read yet.

        shape: reads the shape of a GGUF, or raises StoreError.
        simulate: measures models that may not fit, such as `runner.simulate`.
        devices, cpu: return the present state.
        is_complete: returns whether engines find no devices but these.
        """
        self._placement_config = placement_config
        self._corrections = corrections or MemoryCorrections(None)
        self._memory_estimator = MemoryEstimator(shape, self._corrections, simulate)
        self._devices = devices
        self._is_complete = is_complete
        self._cpu = cpu
        self._sleep = sleep
        self._engines: frozenset[core.EngineSpec] = frozenset()  # at the last placement
        self._others_bytes: dict[str, int] = {}  # used by other processes, by the device's id
        self._records: dict[core.EngineSpec, _PlacementRecord] = {}  # the newest one last
        self._lock = threading.Lock()

    def place(self, request: core.PlacementRequest) -> core.Placement:
        """Return where the model goes; raise InvalidOption if `main_gpu` names no existing GPU."""
        with self._lock:
            return self._place(request)

    def record_usage(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        """Correct later estimates by what an engine took.  spec: as it was placed."""
        with self._lock:
            record = self._records.get(spec)
            was_refused = record is not None and record.n_refusals > 0
            self._memory_estimator.record_usage(spec, facts, was_refused=was_refused)
            # After a later placement the missing memory may belong to that model.
            if record is not None and spec == next(reversed(self._records)):
                self._learn_process_bytes(record, facts)
            self._records.pop(spec, None)

    def _place(self, request: core.PlacementRequest) -> core.Placement:
        found = self._devices()
        usage = self._usage(request, found)
        found = self._wait_for_freed_memory(request, usage, found)
        machine = self._machine(found, usage)
        placement = self._plan(request, machine, usage)
        gives_up = _gives_up_something(request, placement, has_devices=bool(found))
        if gives_up and self._memory_estimator.simulate([request.spec, *request.residents]):
            usage = self._usage(request, found)
            machine = self._machine(found, usage)
            placement = self._plan(request, machine, usage)
        self._engines = frozenset({*request.residents, placement.spec})
        self._remember(_PlacementRecord(placement.spec, request.n_refusals, machine.devices))
        needed = self._memory_estimator.of(request.spec)[0]
        log.info("%s", describe_placement(request, placement, machine, needed))
        return placement

    def _usage(self, request: core.PlacementRequest, found: Sequence[Device]) -> ResidentUsage:
        of = self._memory_estimator.of
        return sum_resident_usage(request.residents, of, gpus=bool(found))

    def _machine(self, found: Sequence[Device], usage: ResidentUsage) -> MachineMemory:
        cpu = self._cpu()
        # Linux counts mapped weights as available, but a loaded model needs them in memory.
        ram_bytes = max(min(cpu.available_bytes, cpu.total_bytes - usage.ram_bytes), 0)
        return MachineMemory(
            devices=tuple(found),
            ram_bytes=ram_bytes,
            total_ram_bytes=cpu.total_bytes,
            is_complete=self._is_complete(),
            process_bytes=self._corrections.process_bytes(),
        )

    def _plan(
        self, request: core.PlacementRequest, machine: MachineMemory, usage: ResidentUsage
    ) -> core.Placement:
        target, drafter = self._models(request.spec, usage)
        placement = plan(request, target, drafter, machine, self._placement_config)
        on_gpus = any(usage.n_engines[device.id] for device in machine.devices)
        if placement.fits or not request.residents or not machine.devices or on_gpus:
            return placement
        # No resident model uses a GPU, so unloading one frees no GPU memory.
        anything = replace(request, give_up=core.GiveUp.ANYTHING)
        tried = plan(anything, target, drafter, machine, self._placement_config)
        return placement if tried.shortage else tried

    def _remember(self, record: _PlacementRecord) -> None:
        self._records.pop(record.spec, None)
        self._records[record.spec] = record
        while len(self._records) > _MAX_LOADING:
            del self._records[next(iter(self._records))]

    def _learn_process_bytes(self, last: _PlacementRecord, facts: core.EngineFacts) -> None:
        """Record what each device lost beyond what the models say that they took."""
        taken = _on_devices(last.spec, facts)
        now = {device.id: device.free_bytes for device in self._devices()}
        for device in last.devices:
            if device.kind is DeviceKind.DISCRETE and device.id in taken and device.id in now:
                gone = device.free_bytes - now[device.id]
                self._corrections.record_process_bytes(device.id, gone - taken[device.id])

    # ------------------------------------------------------------------------- devices

    def _wait_for_freed_memory(
        self, request: core.PlacementRequest, usage: ResidentUsage, found: Sequence[Device]
    ) -> Sequence[Device]:
        """Return the devices after the driver has freed the memory of ended engines."""
        if self._engines - set(request.residents):
            for pause_s in _PAUSES_S:
                if not self._is_release_pending(found, usage):
                    break
                self._sleep(pause_s)
                found = self._devices()
        self._others_bytes = dict(
            _other_processes_bytes(found, usage, self._corrections.process_bytes())
        )
        return found

    def _is_release_pending(self, found: Sequence[Device], usage: ResidentUsage) -> bool:
        """Return whether foreign processes seem to use more than at the last placement."""
        return any(
            n_bytes > self._others_bytes.get(device, n_bytes) + _LATE_BYTES
            for device, n_bytes in _other_processes_bytes(
                found, usage, self._corrections.process_bytes()
            )
        )

    # -------------------------------------------------------------------------- models

    def _models(self, spec: core.EngineSpec, usage: ResidentUsage) -> tuple[Model, Model | None]:
        def target(n_ctx: int) -> Footprint:
            return self._memory_estimator.of(replace(spec, n_ctx=n_ctx))[0]

        def drafter(n_ctx: int) -> Footprint:
            of_drafter = self._memory_estimator.of(replace(spec, n_ctx=n_ctx))[1]
            assert of_drafter is not None, "a spec with a drafter has a drafter's footprint"
            return of_drafter

        mapped = usage.mapped_weights(spec)
        return (
            Model(at=target, is_mapped=mapped[0]),
            Model(at=drafter, is_mapped=mapped[1]) if spec.drafter else None,
        )


def _gives_up_something(
    request: core.PlacementRequest, placement: core.Placement, *, has_devices: bool
) -> bool:
    """Return whether a lower estimate could give a better placement."""
    asked, spec = request.spec, placement.spec
    is_refused = not placement.fits or bool(placement.shortage) or request.n_refusals > 0
    is_less = (spec.drafter, spec.n_ctx) != (asked.drafter, asked.n_ctx)
    is_elsewhere = has_devices and spec.n_gpu_layers != asked.n_gpu_layers
    return is_refused or is_less or is_elsewhere or len(spec.devices or ()) > 1


def _other_processes_bytes(
    found: Sequence[Device], usage: ResidentUsage, process_bytes: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """Yield (device's id, bytes that processes other than our engines use)."""
    for device in found:
        processes = usage.n_engines[device.id] * process_bytes.get(device.id, PROCESS_BYTES)
        ours = usage.on_devices[device.id] + processes
        yield device.id, max(device.total_bytes - device.free_bytes - ours, 0)


def _on_devices(spec: core.EngineSpec, facts: core.EngineFacts) -> Counter[str]:
    """Return the bytes that the models took, by the device's id.

    An engine reports CUDA devices by their number among those that it sees.
    """
    taken: Counter[str] = Counter(dict.fromkeys(spec.devices or (), 0))
    memories = [facts.target, *([facts.drafter] if facts.drafter is not None else [])]
    for name, n_bytes in (part for memory in memories for part in memory.by_device):
        number = re.fullmatch(r"CUDA(\d+)", name)
        if name in taken:
            taken[name] += n_bytes
        elif number and int(number[1]) < len(spec.devices or ()):
            taken[(spec.devices or ())[int(number[1])]] += n_bytes
    return taken


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
