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
from specd.placement.estimate import Footprint
from specd.placement.memory_corrections import MemoryCorrections
from specd.placement.memory_estimator import MemoryEstimator
from specd.placement.plan import plan
from specd.placement.planner import PROCESS_BYTES, MachineMemory, Model
from specd.placement.resident_usage import ResidentUsage, sum_resident_usage
from specd.placement.summary import describe_placement
from specd.store.shape import Shape

log = logging.getLogger(__name__)

MIB: Final = 2**20
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
        devices, cpu: return the present state.
        is_complete: returns whether engines find no devices but these.
        """
        self._placement_config = placement_config
        self._corrections = corrections or MemoryCorrections(None)
        self._memory_estimator = MemoryEstimator(shape, self._corrections)
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
        usage = sum_resident_usage(request.residents, self._memory_estimator.of, gpus=bool(found))
        found = self._wait_for_freed_memory(request, usage, found)
        cpu = self._cpu()
        # Linux counts mapped weights as available, but a loaded model needs them in memory.
        ram_bytes = max(min(cpu.available_bytes, cpu.total_bytes - usage.ram_bytes), 0)
        machine = MachineMemory(
            devices=tuple(found),
            ram_bytes=ram_bytes,
            total_ram_bytes=cpu.total_bytes,
            is_complete=self._is_complete(),
            process_bytes=self._corrections.process_bytes(),
        )
        target, drafter = self._models(request.spec, usage)
        placement = plan(request, target, drafter, machine, self._placement_config)
        on_gpus = any(usage.n_engines[device.id] for device in found)
        if not placement.fits and request.residents and found and not on_gpus:
            # No resident model uses a GPU, so unloading one frees no GPU memory.
            anything = replace(request, give_up=core.GiveUp.ANYTHING)
            tried = plan(anything, target, drafter, machine, self._placement_config)
            placement = placement if tried.shortage else tried
        self._engines = frozenset({*request.residents, placement.spec})
        self._remember(_PlacementRecord(placement.spec, request.n_refusals, machine.devices))
        needed = target.at(request.spec.n_ctx)
        log.info("%s", describe_placement(request, placement, machine, needed))
        return placement

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
