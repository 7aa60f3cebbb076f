"""Where an engine would lie on this machine, and what is asked to find that out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from specd.core.load import EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDevice:
    """A GPU that this build of llama.cpp can use, as it says so itself.

    name: llama.cpp's ("CUDA0").  backend: whose it is ("CUDA").  bus_id: on PCI, in lower case
    ("0000:c1:00.0"), "" where it is not known.  Bytes are 0 where they are not known.
    """

    name: str
    backend: str
    description: str
    integrated: bool
    bus_id: str = ""
    total_bytes: int = 0
    free_bytes: int = 0


class GiveUp(IntEnum):
    """What a model may do without, so that it is loaded at all; each allows those before it."""

    NOTHING = 0  # other models can leave first; but what no empty machine can have is not had
    DRAFTER = 1
    ANYTHING = 2  # drafter, then context as far as `least_ctx`, then layers on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """A model that wants to be loaded.

    spec: with context and threads filled in.  least_ctx: tokens per slot below which it must not
    go; spec.n_ctx where the caller chose it.  beside: engines that are there, as they were loaded.
    n_refusals: how often memory was refused to it while the same callers waited; n_refused_alone:
    how often of these nobody was beside it.  name: what people call it, "" where nobody said.
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
    """spec: with nothing left open, what was given up left out and said in it.

    fits: False where somebody has to leave first; always True where anything may be given up.
    bytes_by_device: what it is thought to take; the device "CPU" is main memory.
    shortage: what it needs and what there is, in words, where it finds no room or is only tried.
    """

    spec: EngineSpec
    fits: bool
    bytes_by_device: tuple[tuple[str, int], ...] = ()
    shortage: str = ""
