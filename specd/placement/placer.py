"""Where a model lies beside those that are loaded, in the memory that is free just now."""

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
from specd.placement.resident_usage import ResidentUsage, residents
from specd.placement.summary import describe_placement
from specd.store.shape import Shape

log = logging.getLogger(__name__)

MIB: Final = 2**20
#: A driver takes back what a process held some time after its end: so long it is waited for.
_PAUSES_S: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.5)
#: So much less is free than was thought, before it is waited for.
_LATE_BYTES: Final = 256 * MIB
#: So many are placed before the first of them is loaded, at the most.
_MAX_LOADING: Final = 16


@dataclass(frozen=True, slots=True)
class _PlacementRecord:
    """spec: as it was placed.  devices: as they were before it was loaded."""

    spec: core.EngineSpec
    n_refusals: int
    devices: tuple[Device, ...]


class Placer:
    """Blocks; safe to use from several threads, which wait for each other."""

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
        """shape: what a GGUF says of its memory, or StoreError.  devices, cpu: as they are now.

        are_all: whether engines will find no devices but these.
        """
        self._placement_config = placement_config
        self._corrections = corrections or MemoryCorrections(None)
        self._memory_estimator = MemoryEstimator(shape, self._corrections)
        self._devices = devices
        self._is_complete = is_complete
        self._cpu = cpu
        self._sleep = sleep
        self._engines: frozenset[core.EngineSpec] = frozenset()  # as far as is known
        self._others_bytes: dict[str, int] = {}  # what nobody of ours held of each device
        self._questions: dict[core.EngineSpec, _PlacementRecord] = {}  # the last one at the end
        self._lock = threading.Lock()

    def place(self, request: core.PlacementRequest) -> core.Placement:
        """Raises InvalidOption where the caller names a GPU that is not there."""
        with self._lock:
            return self._place(request)

    def record_usage(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        """What an engine took in truth, for the next estimate.  spec: as it was placed."""
        with self._lock:
            question = self._questions.get(spec)
            was_refused = question is not None and question.n_refusals > 0
            self._memory_estimator.record_usage(spec, facts, was_refused=was_refused)
            # Once another is placed, what is gone of a device may be gone for that one.
            if question is not None and spec == next(reversed(self._questions)):
                self._learn_process_bytes(question, facts)
            self._questions.pop(spec, None)

    def _place(self, request: core.PlacementRequest) -> core.Placement:
        found = self._devices()
        usage = residents(request.residents, self._memory_estimator.of, gpus=bool(found))
        found = self._wait_for_freed_memory(request, usage, found)
        cpu = self._cpu()
        # Weights that are mapped count as available, though a model needs them there.
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
            # Of those that could leave nobody holds anything of a GPU.
            anything = replace(request, give_up=core.GiveUp.ANYTHING)
            tried = plan(anything, target, drafter, machine, self._placement_config)
            placement = placement if tried.shortage else tried
        self._engines = frozenset({*request.residents, placement.spec})
        self._remember(_PlacementRecord(placement.spec, request.n_refusals, machine.devices))
        needed = target.at(request.spec.n_ctx)
        log.info("%s", describe_placement(request, placement, machine, needed))
        return placement

    def _remember(self, question: _PlacementRecord) -> None:
        self._questions.pop(question.spec, None)
        self._questions[question.spec] = question
        while len(self._questions) > _MAX_LOADING:
            del self._questions[next(iter(self._questions))]

    def _learn_process_bytes(self, last: _PlacementRecord, facts: core.EngineFacts) -> None:
        """What is gone of a device beyond what the models say they took."""
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
        """The devices, once those who have gone hold nothing there any more."""
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
            assert of_drafter is not None, "a spec with a drafter needs room for one"
            return of_drafter

        mapped = usage.mapped_weights(spec)
        return (
            Model(at=target, is_mapped=mapped[0]),
            Model(at=drafter, is_mapped=mapped[1]) if spec.drafter else None,
        )


def _other_processes_bytes(
    found: Sequence[Device], usage: ResidentUsage, process_bytes: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """What nobody of ours holds, by the device's id."""
    for device in found:
        processes = usage.n_engines[device.id] * process_bytes.get(device.id, PROCESS_BYTES)
        ours = usage.on_devices[device.id] + processes
        yield device.id, max(device.total_bytes - device.free_bytes - ours, 0)


def _on_devices(spec: core.EngineSpec, facts: core.EngineFacts) -> Counter[str]:
    """What the models took, by the device's id; CUDA numbers what it is shown."""
    taken: Counter[str] = Counter(dict.fromkeys(spec.devices or (), 0))
    memories = [facts.target, *([facts.drafter] if facts.drafter is not None else [])]
    for name, n_bytes in (part for memory in memories for part in memory.by_device):
        number = re.fullmatch(r"CUDA(\d+)", name)
        if name in taken:
            taken[name] += n_bytes
        elif number and int(number[1]) < len(spec.devices or ()):
            taken[(spec.devices or ())[int(number[1])]] += n_bytes
    return taken
