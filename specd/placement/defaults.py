"""Defaults that depend on the machine: context length, threads, number of loaded models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specd import core
from specd.placement.cpu import Cpu
from specd.placement.devices import Device

GIB = 1024**3

# Ollama's tiers: total VRAM of the machine → tokens.
_CTX_BY_VRAM = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4_096))


def num_ctx_for(total_vram_bytes: int) -> int:
    """Return Ollama's default context, in tokens, for a machine with so much VRAM."""
    return next(n_ctx for least, n_ctx in _CTX_BY_VRAM if total_vram_bytes >= least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The defaults of this machine.  n_ctx: OLLAMA_CONTEXT_LENGTH, or 0 for Ollama's tier."""

    devices: Sequence[Device]
    cpu: Cpu
    n_ctx: int = 0

    def fill(self, spec: core.EngineSpec, n_ctx_train: int) -> core.EngineSpec:
        """Return `spec` with context and threads set.

        n_ctx_train: tokens that the model was trained for, 0 if unknown; no context is longer.
        """
        n_ctx = spec.n_ctx or self.n_ctx or num_ctx_for(sum(d.total_bytes for d in self.devices))
        n_ctx = max(n_ctx, core.smallest_ctx(sees=spec.projector is not None))
        if n_ctx_train > 0:
            n_ctx = min(n_ctx, n_ctx_train)
        return replace(
            spec,
            n_ctx=max(n_ctx, core.smallest_ctx(sees=False)),
            n_threads=self._n_threads(spec.n_threads),
        )

    def min_ctx(self, n_ctx: int) -> int:
        """Return the tokens to which a default context may shrink: `n_ctx` if the user set it."""
        return n_ctx if self.n_ctx else min(n_ctx, _CTX_BY_VRAM[-1][1])

    def _n_threads(self, asked: int) -> int:
        """Return the threads, at most two per core: thousands crash llama.cpp, many slow it."""
        return min(asked, 2 * self.cpu.n_cores) if asked > 0 else self.cpu.n_cores

    @property
    def max_loaded(self) -> int:
        """The most models to load at the same time if OLLAMA_MAX_LOADED_MODELS is 0."""
        return 3 * max(len(self.devices), 1)
