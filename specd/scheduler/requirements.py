"""What a request needs: whether a loaded engine will do, and how to load one otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from specd import core
from specd.scheduler.runner_ref import RunnerRef, Waiter, as_local

#: The pair source of a drafter that belongs to the model, as its weights do.
MANIFEST = "manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Decides what a waiter for a local model needs.

    fill: sets what a spec leaves open (`placement.Defaults.fill`).
    min_automatic_ctx: returns the tokens to which an automatic context may shrink
    (`placement.Defaults.min_ctx`).
    """

    fill: Callable[[core.EngineSpec, int], core.EngineSpec]
    min_automatic_ctx: Callable[[int], int]

    def filled_spec(self, waiter: Waiter) -> core.EngineSpec:
        return self.fill(waiter.local_spec, waiter.model.n_ctx_train)

    def min_ctx(self, waiter: Waiter) -> int:
        """Return the shortest context, in tokens, that the waiter accepts."""
        n_ctx = self.filled_spec(waiter).n_ctx
        return n_ctx if waiter.local_spec.n_ctx else self.min_automatic_ctx(n_ctx)

    def grown_spec(self, waiter: Waiter, n_ctx_before: int) -> core.EngineSpec:
        """Return what to load in place of an engine whose context, `n_ctx_before`, was too short.

        A context that is asked for becomes at least twice as long as the one before: a client that
        asks for a little more each time causes few loads.  An automatic context does not grow.
        """
        if not waiter.local_spec.n_ctx:
            return self.filled_spec(waiter)
        n_ctx = max(self.filled_spec(waiter).n_ctx, 2 * n_ctx_before)
        return self.fill(replace(waiter.local_spec, n_ctx=n_ctx), waiter.model.n_ctx_train)

    def is_compatible(self, waiter: Waiter, runner: RunnerRef) -> bool:
        """Return whether `runner` is, or will be, what the waiter asks for.

        A setting that the waiter leaves open matches any value, except a context shorter than the
        automatic one.  The changes that placement made and the drafter are not compared.  Options
        of an upstream model go with each request, so they need no reload.
        """
        if runner.key != waiter.key:
            return False
        if not waiter.is_local:
            return True
        if not self._has_context(waiter, runner):
            return False
        wanted, there = self.filled_spec(waiter), as_local(runner.requested)
        # The retry of a drafter that did not pay does not force a reload.
        lost = there.no_pair_reason == core.NoPair.DOES_NOT_PAY
        is_own = waiter.spec.pair_source == MANIFEST
        if is_own and wanted.drafter != there.drafter and not lost:
            return False
        return _reload_settings(wanted, there) == _reload_settings(there, there)

    def needs_longer_context(self, waiter: Waiter, runner: RunnerRef) -> bool:
        """Return whether the waiter asks for a longer context than the runner has."""
        return bool(waiter.local_spec.n_ctx) and not self._has_context(waiter, runner)

    def _has_context(self, waiter: Waiter, runner: RunnerRef) -> bool:
        """Return whether the runner's context is as long as a load for this waiter alone gives.

        An automatic context may be cut by placement: then what the last automatic load was given
        counts.  Otherwise automatic and explicit requests would reload the model in turn, forever.
        """
        wanted = self.filled_spec(waiter).n_ctx
        if not waiter.local_spec.n_ctx and runner.automatic_ctx:
            wanted = min(wanted, runner.automatic_ctx)
        return wanted <= runner.local_spec.n_ctx


def _reload_settings(spec: core.EngineSpec, there: core.EngineSpec) -> core.EngineSpec:
    """Return `spec` with the settings that never force a reload taken from `there`."""
    return replace(
        spec,
        drafter=there.drafter,
        drafter_name=there.drafter_name,
        pair_source=there.pair_source,
        no_pair_reason=there.no_pair_reason,
        no_pair_detail=there.no_pair_detail,
        max_draft=there.max_draft,
        n_ctx=there.n_ctx,
        n_gpu_layers=there.n_gpu_layers if spec.n_gpu_layers < 0 else spec.n_gpu_layers,
        main_gpu=there.main_gpu if spec.main_gpu is None else spec.main_gpu,
    )
