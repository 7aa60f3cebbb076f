"""Place published models on published machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from specd import core
from specd.placement import Defaults, Device
from specd.placement.config import PlacementConfig
from specd.placement.estimate import Footprint, simulated_footprint
from specd.placement.plan import CPU, plan
from specd.placement.planner import PROCESS_BYTES, MachineMemory, Model
from tests.placement.published_models import GIB, PUBLISHED, main_memory, shape


def model(
    name: str,
    cache: str = "f16",
    extra_gib: float = 0.0,
    n_slots: int = 1,
    drafts_for: str | None = None,
) -> Model:
    """Return a published model, such as "llama3.1:8b Q4_K_M".

    drafts_for: name of the target if the model is a drafter.
    """
    published = PUBLISHED[name.split(maxsplit=1)[0]]
    longest = shape(drafts_for or name).n_ctx_train

    def at(n_ctx: int) -> Footprint:
        spec = core.EngineSpec(
            weights=name,
            n_ctx=min(n_ctx, longest),
            n_slots=n_slots,
            kv_cache_type=cache,
            embeds=published.architecture == "nomic-bert",
        )
        memory = published.memory(spec, is_drafter=drafts_for is not None)
        return simulated_footprint(spec, shape(name), memory, extra_bytes=int(extra_gib * GIB))

    return Model(at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A placement request.  n_ctx: 0 is automatic; ram, held: GiB, in total and held by others."""

    target: str
    drafter: str | None = None
    n_ctx: int = 0
    cache: str = "f16"
    num_gpu: int = -1
    main_gpu: int | None = None
    draft_device: str = "auto"
    spread: bool = False
    overhead: float = 0.0
    extra: float = 0.0
    ram: int = 64
    n_refusals: int = 0
    n_refused_alone: int = 0
    n_slots: int = 1
    held: int = 0
    name: str = ""

    def request(self, gpus: Sequence[Device], give_up: core.GiveUp) -> core.PlacementRequest:
        cpu = main_memory(self.ram)
        defaults = Defaults(devices=gpus, cpu=cpu)
        asked = core.EngineSpec(
            weights=self.target,
            drafter=self.drafter,
            drafter_name=self.drafter or "",
            n_ctx=self.n_ctx,
            n_slots=self.n_slots,
            n_gpu_layers=self.num_gpu,
            main_gpu=self.main_gpu,
            kv_cache_type=self.cache,
        )
        spec = defaults.fill(asked, shape(self.target).n_ctx_train)
        return core.PlacementRequest(
            spec=spec,
            min_ctx=self.n_ctx or defaults.min_ctx(spec.n_ctx),
            give_up=give_up,
            n_refusals=self.n_refusals,
            n_refused_alone=self.n_refused_alone,
            name=self.name,
        )

    def place(
        self, gpus: Sequence[Device], give_up: core.GiveUp = core.GiveUp.ANYTHING
    ) -> core.Placement:
        cpu = main_memory(self.ram)
        return plan(
            self.request(gpus, give_up),
            model(self.target, self.cache, self.extra, self.n_slots),
            model(self.drafter, self.cache, 0.0, self.n_slots, self.target)
            if self.drafter
            else None,
            MachineMemory(
                devices=tuple(gpus),
                ram_bytes=cpu.available_bytes - self.held * GIB,
                total_ram_bytes=cpu.total_bytes,
            ),
            PlacementConfig(
                overhead_bytes=int(self.overhead * GIB),
                spread=self.spread,
                draft_device=self.draft_device,
            ),
        )


def without(gpus: Sequence[Device], loaded: Sequence[str]) -> tuple[Device, ...]:
    """Return the GPUs without the memory of loaded engines: "MODEL on GPU" or "A + B on GPU"."""
    left = {gpu.id: gpu.free_bytes for gpu in gpus}
    for engine in loaded:
        models, _, gpu = engine.rpartition(" on ")
        if gpu == CPU:
            continue
        taken = sum(model(name).at(4096).on_device(-1) for name in models.split(" + "))
        left[gpu] -= taken + PROCESS_BYTES
    return tuple(replace(gpu, free_bytes=left[gpu.id]) for gpu in gpus)


def held_in_main_memory(loaded: Sequence[str]) -> int:
    """Return the GiB of main memory that the engines "on CPU" hold."""
    engines = (engine.rpartition(" on ") for engine in loaded)
    names = [name for models, _, at in engines if at == CPU for name in models.split(" + ")]
    return -(-sum(model(name).at(4096).total_bytes for name in names) // GIB)


def layers_by_llama_cpp(spec: core.EngineSpec, n_blocks: int) -> list[str]:
    """Return the device of each layer, the output last, by llama.cpp's rule; "" is the CPU."""
    import numpy as np  # noqa: PLC0415

    devices = spec.devices or ()
    n_all = n_blocks + 1
    n = min(n_all if spec.n_gpu_layers < 0 else spec.n_gpu_layers, n_all) if devices else 0
    splits = np.cumsum(np.array(spec.tensor_split or (1.0,), dtype=np.float32), dtype=np.float32)
    splits /= splits[-1]
    numbers = (np.float32(at) / np.float32(n) for at in range(n))
    return [""] * (n_all - n) + [devices[int(np.searchsorted(splits, x, "right"))] for x in numbers]


def pieces(devices: Sequence[str]) -> dict[str, int]:
    """Return the number of layers of each device, in order."""
    return {device: len(list(layers)) for device, layers in groupby(devices)}
