"""Whether a model finds room beside those that are loaded (contract 6)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specd import core
from specd.errors import StoreError
from specd.placement.cpu import Cpu
from specd.placement.defaults import GIB
from specd.placement.devices import Device, devices
from specd.placement.estimate import Weights, engine_bytes
from specd.store.facts import GgufFacts

log = logging.getLogger(__name__)

#: An estimate that is so much of what is free may be a little wrong, and still fit.
SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """facts: what a GGUF says of itself, or StoreError.  devices, cpu: what is there just now."""

    facts: Callable[[Path], GgufFacts]
    devices: Callable[[], Sequence[Device]] = devices
    cpu: Callable[[], Cpu] = Cpu.read

    def fits(self, spec: core.EngineSpec, beside: Sequence[core.EngineSpec]) -> bool:
        """Whether `spec` may be loaded beside engines that are there; reads files, may block."""
        found = self.devices()
        needed, free = self.bytes_of(spec), self._free(spec, beside, found)
        fits = needed <= SHARE * free
        log.info(
            "%s needs about %.1f GiB of %.1f GiB that are free: %s",
            spec.weights,
            needed / GIB,
            free / GIB,
            "it is loaded beside the others" if fits else "another model has to leave first",
        )
        return fits

    def place(self, request: core.PlacementRequest) -> core.Placement:
        """Where it would lie just now; reads files, may block."""
        fits = request.give_up is core.GiveUp.ANYTHING or self.fits(request.spec, request.beside)
        return core.Placement(spec=request.spec, fits=fits)

    def learn(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        """What an engine took in truth, for the next estimate."""

    def bytes_of(self, spec: core.EngineSpec) -> int:
        others = (*spec.adapters, *([spec.projector] if spec.projector else []))
        return engine_bytes(
            spec,
            self._weights(spec.weights),
            self._weights(spec.drafter) if spec.drafter else None,
            others_bytes=sum(map(_file_bytes, others)),
        )

    def _free(
        self, spec: core.EngineSpec, beside: Sequence[core.EngineSpec], found: Sequence[Device]
    ) -> int:
        """Bytes where `spec` will lie: on its GPU or on all of them, else in main memory."""
        if found and spec.n_gpu_layers != 0:
            own = [device for device in found if device.index == spec.main_gpu]
            return sum(device.free_bytes for device in own or found)
        cpu = self.cpu()
        # Weights mapped from a file count as available, though a model needs them there.
        held = sum(self.bytes_of(there) for there in beside if not found or not there.n_gpu_layers)
        return max(min(cpu.available_bytes, cpu.total_bytes - held), 0)

    def _weights(self, path: str) -> Weights:
        try:
            n_cached = self.facts(Path(path)).n_cached
        except StoreError:
            n_cached = 0  # the engine will say what is wrong with the file
        return Weights(n_bytes=_file_bytes(path), n_cached=n_cached)


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
