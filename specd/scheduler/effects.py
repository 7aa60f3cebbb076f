"""The decisions of the scheduler, which its loop carries out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from specd import core, errors


class UnloadReason(StrEnum):
    """Why a model is unloaded."""

    EXPIRED = "expired"  # its keep_alive is over, or a client unloaded it
    EVICTED = "make_room"  # for another model, or for a reload with other settings
    NOT_NEEDED = "unwanted"  # no request waits for its load any more
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Start:
    """Load `spec` in a new engine; answered by `loaded`, or `failed` and then `ended`."""

    runner_id: int
    spec: core.LoadSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """End an engine, loading or loaded; answered by `ended`.  reason: for metrics only."""

    runner_id: int
    reason: UnloadReason = field(default=UnloadReason.EXPIRED, compare=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Find a placement in the memory that is free now; answered by `placed`.

    waiter_id: the request that the model would be loaded for.
    """

    waiter_id: int
    request: core.PlacementRequest


@dataclass(frozen=True, slots=True)
class Grant:
    """Let the waiter use the runner until it releases it."""

    waiter_id: int
    runner_id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the wait of a waiter with an error."""

    waiter_id: int
    error: errors.SpecdError


Effect = Start | Stop | Place | Grant | Refuse
