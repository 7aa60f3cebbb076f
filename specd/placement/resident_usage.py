"""The memory that the loaded engines use, by the specs that they were loaded with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from specd import core
from specd.placement.estimate import Footprint
from specd.placement.layout import Layout

Footprints = Callable[[core.EngineSpec], tuple[Footprint, Footprint | None]]


@dataclass(slots=True)
class ResidentUsage:
    """The memory of all loaded engines.

    on_devices: bytes of models, by the device's id.  n_engines: processes, by the device's id.
    mapped: files that are wholly mapped into main memory, where processes share them.
    """

    ram_bytes: int = 0
    on_devices: Counter[str] = field(default_factory=Counter)
    n_engines: Counter[str] = field(default_factory=Counter)
    mapped: set[str] = field(default_factory=set)

    def add(
        self, spec: core.EngineSpec, target: Footprint, drafter: Footprint | None, *, gpus: bool
    ) -> None:
        """Add an engine.  gpus: whether llama.cpp finds GPUs if the spec does not name any."""
        if spec.devices is None and gpus and spec.n_gpu_layers != 0:
            return  # it is on unknown GPUs, whose drivers report the free memory
        layout = layout_of(spec, len(target.blocks))
        self.ram_bytes += layout.in_main_memory(target, drafter, self.mapped_weights(spec))
        self.mapped.update(_maps(spec, layout))
        devices = spec.devices or ()
        for at, n_bytes in layout.on_devices(target, drafter).items():
            self.on_devices[devices[at]] += n_bytes
        self.n_engines.update(devices)

    def mapped_weights(self, spec: core.EngineSpec) -> tuple[bool, bool]:
        """Return whether another engine maps the weights of the target, and of the drafter."""
        if spec.use_mmap is False:
            return False, False
        return spec.weights in self.mapped, spec.drafter in self.mapped


def sum_resident_usage(
    engines: Iterable[core.EngineSpec], footprints: Footprints, *, gpus: bool
) -> ResidentUsage:
    """Return the memory of all these engines; `gpus` as in `ResidentUsage.add`."""
    usage = ResidentUsage()
    for spec in engines:
        usage.add(spec, *footprints(spec), gpus=gpus)
    return usage


def layout_of(spec: core.EngineSpec, n_blocks: int) -> Layout:
    """Return the layout that a spec describes.  A place is an index into `spec.devices`."""
    devices = spec.devices or ()
    if not devices:
        return Layout()
    n_layers = n_blocks + 1
    if spec.n_gpu_layers >= 0:
        n_layers = min(spec.n_gpu_layers, n_layers)
    counts = [int(n) for n in spec.tensor_split] or [n_layers]
    layers = tuple((at, n) for at, n in enumerate(counts) if n)
    on_device = spec.drafter is not None and not spec.draft_on_cpu
    if not layers and spec.draft_device is None:
        on_device = False  # in main memory, with its target
    return Layout(layers=layers, drafter=(spec.draft_device or 0) if on_device else None)


def _maps(spec: core.EngineSpec, layout: Layout) -> list[str]:
    if spec.use_mmap is False:
        return []
    target = [] if layout.layers else [spec.weights]
    drafter = [spec.drafter] if spec.drafter and layout.drafter is None else []
    return [*target, *drafter]
