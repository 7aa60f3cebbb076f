"""The scheduler's records of a loaded model and of a waiting request."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from specd import core


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A request that wants to use a model.

    spec: as requested; n_ctx 0 means automatic.  keep_alive_s: None keeps the runner's value.
    """

    id: int
    spec: core.EngineSpec
    model: core.ModelRef
    pair: core.Pair
    keep_alive_s: float | None = None

    @property
    def weights(self) -> str:
        return self.spec.weights


class RunnerPhase(StrEnum):
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"  # asked to stop; its memory is not free before it has ended


@dataclass(slots=True, kw_only=True)
class RunnerRef:
    """One engine that is loading, loaded or unloading.

    requested: the spec before placement, with nothing left open.
    spec: the spec that was loaded, which may have less.
    min_ctx: the shortest context, in tokens, that the request behind the load accepts.
    automatic_ctx: tokens of context of the last load without `num_ctx`, this one or one that it
    replaced; 0 if there was none.
    shortage: which memory is short, if that was known before the load (`core.Placement`).
    expires_at: end of the last use + keep_alive_s; valid while idle.
    users: ids of the waiters that hold a lease.
    """

    id: int
    requested: core.EngineSpec
    spec: core.EngineSpec
    min_ctx: int
    model: core.ModelRef
    pair: core.Pair
    keep_alive_s: float
    automatic_ctx: int = 0
    shortage: str = ""
    phase: RunnerPhase = RunnerPhase.LOADING
    expires_at: float = math.inf
    users: set[int] = field(default_factory=set)

    @property
    def weights(self) -> str:
        return self.spec.weights

    @property
    def is_idle(self) -> bool:
        return self.phase is RunnerPhase.LOADED and not self.users

    @property
    def eviction_order(self) -> tuple[bool, bool, float, str]:
        """Sort key: unloading first, then idle, then shortest keep_alive (Ollama's order)."""
        is_unloading = self.phase is RunnerPhase.UNLOADING
        return not is_unloading, bool(self.users), self.keep_alive_s, self.weights
