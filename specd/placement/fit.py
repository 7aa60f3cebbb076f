"""Where a model lies beside those that are loaded, in the memory that is free just now."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specd import core
from specd.errors import StoreError
from specd.placement.beside import Beside, beside, layout_of
from specd.placement.cpu import Cpu
from specd.placement.devices import Device, devices
from specd.placement.engine import footprints
from specd.placement.estimate import Block, Footprint
from specd.placement.plan import plan
from specd.placement.planner import CONTEXT_BYTES, Machine, Model
from specd.placement.wishes import Wishes
from specd.placement.words import in_words, short_name
from specd.store.shape import Shape

log = logging.getLogger(__name__)

MIB: Final = 2**20
#: A driver takes back what a process held some time after its end: so long it is waited for.
_PAUSES_S: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.5)
#: So much less is free than was thought, before it is waited for.
_LATE_BYTES: Final = 256 * MIB
#: An estimate that is off by more than both is worth a warning.
_WRONG_SHARE, _WRONG_BYTES = 0.05, 64 * MIB


class Fit:
    """Blocks: called in threads, one question after the other."""

    def __init__(
        self,
        shape: Callable[[Path], Shape],
        *,
        wishes: Wishes = Wishes(),  # noqa: B008 - it is frozen
        devices: Callable[[], Sequence[Device]] = devices,
        cpu: Callable[[], Cpu] = Cpu.read,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """shape: what a GGUF says of its memory, or StoreError.  devices, cpu: as they are now."""
        self._shape = shape
        self._wishes = wishes
        self._devices = devices
        self._cpu = cpu
        self._sleep = sleep
        self._engines: frozenset[core.EngineSpec] = frozenset()  # as far as is known
        self._others_bytes: dict[str, int] = {}  # what nobody of ours held of each device

    def place(self, request: core.PlacementRequest) -> core.Placement:
        """Raises InvalidOption where the caller names a GPU that is not there."""
        found = self._devices()
        held = beside(request.beside, self._footprints, gpus=bool(found))
        found = self._rested(request, held, found)
        cpu = self._cpu()
        # Weights that are mapped count as available, though a model needs them there.
        ram_bytes = max(min(cpu.available_bytes, cpu.total_bytes - held.ram_bytes), 0)
        machine = Machine(devices=tuple(found), ram_bytes=ram_bytes)
        target, drafter = self._models(request.spec, held)
        placement = plan(request, target, drafter, machine, self._wishes)
        self._engines = frozenset({*request.beside, placement.spec})
        needed = target.at(request.spec.n_ctx)
        log.info("%s", in_words(request, placement, machine, needed))
        return placement

    def learn(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        """What an engine took in truth, for the next estimate."""
        target, drafter = self._footprints(spec)
        layout = layout_of(spec, len(target.blocks))
        alone = layout.total_bytes(target)
        _compare(spec.weights, alone, facts.target)
        if spec.drafter is not None and facts.drafter is not None:
            _compare(spec.drafter, layout.total_bytes(target, drafter) - alone, facts.drafter)

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
        self._others_bytes = dict(_held_by_others(found, held))
        return found

    def _is_late(self, found: Sequence[Device], held: Beside) -> bool:
        return any(
            n_bytes > self._others_bytes.get(device, n_bytes) + _LATE_BYTES
            for device, n_bytes in _held_by_others(found, held)
        )

    # -------------------------------------------------------------------------- models

    def _models(self, spec: core.EngineSpec, held: Beside) -> tuple[Model, Model | None]:
        def target(n_ctx: int) -> Footprint:
            return self._footprints(replace(spec, n_ctx=n_ctx))[0]

        def drafter(n_ctx: int) -> Footprint:
            of_target, of_drafter = self._footprints(replace(spec, n_ctx=n_ctx))
            return of_drafter or of_target

        mapped = held.are_mapped(spec)
        return (
            Model(at=target, is_mapped=mapped[0]),
            Model(at=drafter, is_mapped=mapped[1]) if spec.drafter else None,
        )

    def _footprints(self, spec: core.EngineSpec) -> tuple[Footprint, Footprint | None]:
        others = (*spec.adapters, *([spec.projector] if spec.projector else []))
        drafter = self._shape_of(spec.drafter) if spec.drafter else None
        beside_target = _lump(spec.drafter) if spec.drafter else None
        if (target := self._shape_of(spec.weights)) is None:
            return _lump(spec.weights), beside_target
        found = footprints(spec, target, drafter, extra_bytes=sum(map(_file_bytes, others)))
        return found if drafter is not None else (found[0], beside_target)

    def _shape_of(self, path: str) -> Shape | None:
        try:
            return self._shape(Path(path))
        except StoreError:
            return None  # the engine will say what is wrong with the file


def _held_by_others(found: Sequence[Device], held: Beside) -> Iterator[tuple[str, int]]:
    """What nobody of ours holds, by the device's id."""
    for device in found:
        ours = held.on_devices[device.id] + held.n_engines[device.id] * CONTEXT_BYTES
        yield device.id, max(device.total_bytes - device.free_bytes - ours, 0)


def _compare(weights: str, thought: int, taken: core.ModelMemory) -> None:
    off = abs(taken.total_bytes - thought)
    if off > _WRONG_BYTES and off > _WRONG_SHARE * taken.total_bytes:
        log.warning(
            "%s takes %.0f MiB, and %.0f MiB were expected",
            short_name(weights),
            taken.total_bytes / MIB,
            thought / MIB,
        )


def _lump(path: str) -> Footprint:
    """Of a file that tells nothing: all in one piece."""
    return Footprint(
        blocks=(Block(weights_bytes=_file_bytes(path), cache_bytes=0),),
        input_bytes=0,
        output_bytes=0,
        extra_bytes=0,
        device_scratch_bytes=0,
        host_scratch_bytes=0,
    )


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
