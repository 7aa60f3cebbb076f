"""The scheduler's records of a loaded model and of a waiting request."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from specd import core


class _ForModel:
    """The part of waiters and runners that depends on their model."""

    __slots__ = ()
    spec: core.LoadSpec
    model: core.ModelRef

    @property
    def key(self) -> str:
        """The model's key: waiters with the same key can share an engine."""
        return self.model.key

    @property
    def is_local(self) -> bool:
        """Whether the model needs memory, and so a placement, on this machine."""
        return isinstance(self.spec, core.EngineSpec)

    @property
    def local_spec(self) -> core.EngineSpec:
        """The spec of a local model."""
        return as_local(self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter(_ForModel):
    """A request that wants to use a model.

    spec: as requested; EngineSpec.n_ctx 0 means automatic.
    keep_alive_s: None keeps the runner's value.
    """

    id: int
    spec: core.LoadSpec
    model: core.ModelRef
    pair: core.Pair
    keep_alive_s: float | None = None


class RunnerPhase(StrEnum):
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"  # asked to stop; its memory is not free before it has ended


@dataclass(slots=True, kw_only=True)
class RunnerRef(_ForModel):
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
    requested: core.LoadSpec
    spec: core.LoadSpec
    model: core.ModelRef
    pair: core.Pair
    keep_alive_s: float
    min_ctx: int = 0
    automatic_ctx: int = 0
    shortage: str = ""
    phase: RunnerPhase = RunnerPhase.LOADING
    expires_at: float = math.inf
    users: set[int] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        return self.phase is RunnerPhase.LOADED and not self.users

    @property
    def eviction_order(self) -> tuple[bool, bool, float, str]:
        """Sort key: unloading first, then idle, then shortest keep_alive (Ollama's order)."""
        is_unloading = self.phase is RunnerPhase.UNLOADING
        return not is_unloading, bool(self.users), self.keep_alive_s, self.key


def as_local(spec: core.LoadSpec) -> core.EngineSpec:
    """Return the spec of a load that is known to be local."""
    assert isinstance(spec, core.EngineSpec), "an upstream model has no placement"
    return spec
