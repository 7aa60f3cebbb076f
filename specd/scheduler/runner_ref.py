"""A resident model, and who wants one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from specd import core


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """Someone who wants the right to use a model.

    spec: as asked for; n_ctx 0 is automatic.  keep_alive_s None keeps the runner's value.
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
    UNLOADING = "leaving"  # told to stop; its memory is not free before it has ended


@dataclass(slots=True, kw_only=True)
class RunnerRef:
    """One resident model.  expires_at: end of the last use + keep_alive_s; holds while idle.

    asked: what its loader wanted, with nothing left open.  spec: how it was loaded in the end,
    which may be with less.  least_ctx: the context that its loader could not do without.
    automatic_ctx: tokens of context that the last load without a `num_ctx` was given, this one or
    one that it replaced; 0 where there was none.
    shortage: what memory lacks for it, as far as that was known before (`core.Placement`).
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
        """One that leaves already, then an idle one, then the shortest session (Ollama's order)."""
        is_unloading = self.phase is RunnerPhase.UNLOADING
        return not is_unloading, bool(self.users), self.keep_alive_s, self.weights
