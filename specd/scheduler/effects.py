"""What the scheduler decides, for its loop to do."""

from __future__ import annotations

from dataclasses import dataclass

from specd import core, errors


@dataclass(frozen=True, slots=True)
class Start:
    """Load `spec` in a new engine; answered by `loaded`, or `failed` and then `ended`."""

    runner_id: int
    spec: core.EngineSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """End an engine, loading or loaded; answered by `ended`."""

    runner_id: int


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
