"""What the scheduler decides, for its loop to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from specd import core, errors


class UnloadReason(StrEnum):
    """Why a model is told to leave."""

    EXPIRED = "expired"  # its keep_alive is over, or somebody unloaded it
    EVICTED = "make_room"  # for another, or for the same loaded otherwise
    NOT_NEEDED = "unwanted"  # nobody waits for its load any more
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Start:
    """Load `spec` in a new engine; answered by `loaded`, or `failed` and then `ended`."""

    runner_id: int
    spec: core.EngineSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """End an engine, loading or loaded; answered by `ended`.  why: only to be told."""

    runner_id: int
    reason: UnloadReason = field(default=UnloadReason.EXPIRED, compare=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Find out where a model would lie in the memory that is free now; answered by `placed`.

    waiter_id: for whom it would be loaded.
    """

    waiter_id: int
    request: core.PlacementRequest


@dataclass(frozen=True, slots=True)
class Grant:
    """The waiter may use the runner until it leaves."""

    waiter_id: int
    runner_id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    waiter_id: int
    error: errors.SpecdError


Effect = Start | Stop | Place | Grant | Refuse
