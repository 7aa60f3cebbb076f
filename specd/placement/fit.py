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
from specd.placement.beside import Beside, beside
from specd.placement.cpu import Cpu
from specd.placement.devices import Device, devices
from specd.placement.estimate import Footprint
from specd.placement.learned import Learned
from specd.placement.needs import Needs
from specd.placement.plan import plan
from specd.placement.planner import PROCESS_BYTES, Machine, Model
from specd.placement.seats import Kind
from specd.placement.wishes import Wishes
from specd.placement.words import in_words
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
class _Question:
    """spec: as it was placed.  devices: as they were before it was loaded."""

    spec: core.EngineSpec
    n_refusals: int
    devices: tuple[Device, ...]


class Fit:
    """Blocks; safe to use from several threads, which wait for each other."""

    def __init__(
        self,
        shape: Callable[[Path], Shape],
        *,
        wishes: Wishes = Wishes(),  # noqa: B008 - it is frozen
        learned: Learned | None = None,
        devices: Callable[[], Sequence[Device]] = devices,
        are_all: Callable[[], bool] = lambda: False,
        cpu: Callable[[], Cpu] = Cpu.read,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """shape: what a GGUF says of its memory, or StoreError.  devices, cpu: as they are now.

        are_all: whether engines will find no devices but these.
        """
        self._wishes = wishes
        self._learned = learned or Learned(None)
        self._needs = Needs(shape, self._learned)
        self._devices = devices
        self._are_all = are_all
        self._cpu = cpu
        self._sleep = sleep
        self._engines: frozenset[core.EngineSpec] = frozenset()  # as far as is known
        self._others_bytes: dict[str, int] = {}  # what nobody of ours held of each device
        self._questions: dict[core.EngineSpec, _Question] = {}  # the last one at the end
        self._lock = threading.Lock()

    def place(self, request: core.PlacementRequest) -> core.Placement:
        """Raises InvalidOption where the caller names a GPU that is not there."""
        with self._lock:
            return self._place(request)

    def learn(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        """What an engine took in truth, for the next estimate.  spec: as it was placed."""
        with self._lock:
            question = self._questions.get(spec)
            was_refused = question is not None and question.n_refusals > 0
            self._needs.learn(spec, facts, was_refused=was_refused)
            # Once another is placed, what is gone of a device may be gone for that one.
            if question is not None and spec == next(reversed(self._questions)):
                self._learn_process_bytes(question, facts)
            self._questions.pop(spec, None)

    def _place(self, request: core.PlacementRequest) -> core.Placement:
        found = self._devices()
        held = beside(request.beside, self._needs.of, gpus=bool(found))
        found = self._rested(request, held, found)
        cpu = self._cpu()
        # Weights that are mapped count as available, though a model needs them there.
        ram_bytes = max(min(cpu.available_bytes, cpu.total_bytes - held.ram_bytes), 0)
        machine = Machine(
            devices=tuple(found),
            ram_bytes=ram_bytes,
            total_ram_bytes=cpu.total_bytes,
            are_all=self._are_all(),
            process_bytes=self._learned.process_bytes(),
        )
        target, drafter = self._models(request.spec, held)
        placement = plan(request, target, drafter, machine, self._wishes)
        on_gpus = any(held.n_engines[device.id] for device in found)
        if not placement.fits and request.beside and found and not on_gpus:
            # Of those that could leave nobody holds anything of a GPU.
            anything = replace(request, give_up=core.GiveUp.ANYTHING)
            tried = plan(anything, target, drafter, machine, self._wishes)
            placement = placement if tried.shortage else tried
        self._engines = frozenset({*request.beside, placement.spec})
        self._remember(_Question(placement.spec, request.n_refusals, machine.devices))
        needed = target.at(request.spec.n_ctx)
        log.info("%s", in_words(request, placement, machine, needed))
        return placement

    def _remember(self, question: _Question) -> None:
        self._questions.pop(question.spec, None)
        self._questions[question.spec] = question
        while len(self._questions) > _MAX_LOADING:
            del self._questions[next(iter(self._questions))]

    def _learn_process_bytes(self, last: _Question, facts: core.EngineFacts) -> None:
        """What is gone of a device beyond what the models say they took."""
        taken = _on_devices(last.spec, facts)
        now = {device.id: device.free_bytes for device in self._devices()}
        for device in last.devices:
            if device.kind is Kind.DISCRETE and device.id in taken and device.id in now:
                gone = device.free_bytes - now[device.id]
                self._learned.note_process_bytes(device.id, gone - taken[device.id])

    # ------------------------------------------------------------------------- devices

    def _rested(
        self, request: core.PlacementRequest, held: Beside, found: Sequence[Device]
    ) -> Sequence[Device]:
        """The devices, once those who have gone hold nothing there any more."""
        if self._engines - set(request.beside):
            for pause_s in _PAUSES_S:
                if not self._is_late(found, held):
                    break
                self._sleep(pause_s)
                found = self._devices()
        self._others_bytes = dict(_held_by_others(found, held, self._learned.process_bytes()))
        return found

    def _is_late(self, found: Sequence[Device], held: Beside) -> bool:
        return any(
            n_bytes > self._others_bytes.get(device, n_bytes) + _LATE_BYTES
            for device, n_bytes in _held_by_others(found, held, self._learned.process_bytes())
        )

    # -------------------------------------------------------------------------- models

    def _models(self, spec: core.EngineSpec, held: Beside) -> tuple[Model, Model | None]:
        def target(n_ctx: int) -> Footprint:
            return self._needs.of(replace(spec, n_ctx=n_ctx))[0]

        def drafter(n_ctx: int) -> Footprint:
            of_drafter = self._needs.of(replace(spec, n_ctx=n_ctx))[1]
            assert of_drafter is not None, "a spec with a drafter needs room for one"
            return of_drafter

        mapped = held.are_mapped(spec)
        return (
            Model(at=target, is_mapped=mapped[0]),
            Model(at=drafter, is_mapped=mapped[1]) if spec.drafter else None,
        )


def _held_by_others(
    found: Sequence[Device], held: Beside, process_bytes: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """What nobody of ours holds, by the device's id."""
    for device in found:
        processes = held.n_engines[device.id] * process_bytes.get(device.id, PROCESS_BYTES)
        ours = held.on_devices[device.id] + processes
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
