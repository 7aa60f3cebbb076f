"""The placement of an engine on this machine: query and result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from specd.core.load import EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDevice:
    """A GPU that this build of llama.cpp lists.

    name: llama.cpp's name ("CUDA0").  backend: llama.cpp's backend ("CUDA").
    bus_id: PCI address in lower case ("0000:c1:00.0"), "" if unknown.
    total_bytes, free_bytes: 0 if unknown.
    """

    name: str
    backend: str
    description: str
    integrated: bool
    bus_id: str = ""
    total_bytes: int = 0
    free_bytes: int = 0


class GiveUp(IntEnum):
    """What a model may lose in order to be loaded; each level includes the ones before it."""

    NOTHING = 0  # other models can be unloaded first
    DRAFTER = 1
    ANYTHING = 2  # drafter, then context down to `min_ctx`, then layers on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """A query for the placement of one model.

    spec: with context and threads filled in.
    min_ctx: least tokens per slot; spec.n_ctx if the caller chose the context.
    residents: the specs of the loaded engines.
    n_refusals: how often it was refused memory while the same callers waited.
    n_refused_alone: how often of these no other model was loaded.
    name: the model's name, "" if unknown.
    """

    spec: EngineSpec
    min_ctx: int
    residents: tuple[EngineSpec, ...] = ()
    give_up: GiveUp = GiveUp.ANYTHING
    n_refusals: int = 0
    n_refused_alone: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The placement of one model.

    spec: complete, without what was given up, and with the reasons for that.
    fits: False if another model has to be unloaded first; always True with GiveUp.ANYTHING.
    bytes_by_device: (device, estimated bytes); the device "CPU" is main memory.
    shortage: what it needs and what is free, as text, if it does not fit or is tried anyway.
    """

    spec: EngineSpec
    fits: bool
    bytes_by_device: tuple[tuple[str, int], ...] = ()
    shortage: str = ""
