"""Estimate the memory of an engine's models: from their files, simulated and earlier loads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specd import core
from specd.errors import StoreError
from specd.placement.estimate import MIB, Block, Footprint, simulated_footprint, upper_bound
from specd.placement.memory_corrections import CorrectionKey, MemoryCorrections
from specd.placement.resident_usage import layout_of
from specd.placement.shortage import short_name
from specd.store.file_identity import file_identity
from specd.store.shape import Shape

log = logging.getLogger(__name__)

#: An estimate that is wrong by more than both is logged as a warning.
_WRONG_SHARE, _WRONG_BYTES = 0.05, 64 * MIB
#: Contexts to simulate: the requested one, and halves of it.
_N_SIMULATED: Final = 4

#: Simulates loads; returns the contexts of each, None if llama.cpp could not load the model.
Simulate = Callable[[Sequence[core.SimulatedLoad]], Sequence[Sequence[core.ContextMemory] | None]]


@dataclass(frozen=True, slots=True)
class _Model:
    """One model of a spec, its context at most as long as the target's training.

    shape: None if the file is unreadable.  extra_bytes: adapters and projector.
    """

    spec: core.EngineSpec
    weights: str
    shape: Shape | None
    is_drafter: bool
    extra_bytes: int = 0

    @property
    def simulation_key(self) -> tuple[object, ...]:
        """What a simulation depends on, except the context."""
        spec = self.spec
        try:
            identity = file_identity(Path(self.weights))
        except OSError:
            identity = ""
        return (
            identity,
            self.is_drafter,
            spec.kv_cache_type,
            spec.flash_attention,
            spec.n_slots,
            spec.n_batch,
            spec.max_draft,
            spec.embeds,
            spec.projector is None,
            spec.no_pair_reason == core.NoPair.DISABLED_BY_USER,
        )

    def correction_key(self, *, is_simulated: bool) -> CorrectionKey:
        """Return the key of the model's corrections; raise OSError if a file is missing."""
        of = CorrectionKey.of_drafter if self.is_drafter else CorrectionKey.of_target
        return of(self.spec, is_simulated=is_simulated)


class MemoryEstimator:
    """Estimates footprints and corrects them by what engines really took.  Reads files; blocks.

    An estimate is an upper bound until `simulate` has measured the model.
    """

    def __init__(
        self,
        shape: Callable[[Path], Shape],
        corrections: MemoryCorrections,
        simulate: Simulate = lambda loads: [None] * len(loads),
    ) -> None:
        """Keep the sources.  shape: reads the shape of a GGUF, or raises StoreError."""
        self._shape = shape
        self._corrections = corrections
        self._simulate = simulate
        #: By `simulation_key`, the shortest context first; empty if llama.cpp cannot load it.
        self._simulated: dict[tuple[object, ...], Sequence[core.ContextMemory]] = {}

    def of(self, spec: core.EngineSpec) -> tuple[Footprint, Footprint | None]:
        """Return the corrected footprints of target and drafter; None without a drafter."""
        target, *drafter = [self._corrected(model) for model in self._models(spec)]
        return target, drafter[0] if drafter else None

    def simulate(self, specs: Iterable[core.EngineSpec]) -> bool:
        """Measure the models of these specs that are not measured yet; return whether any was."""
        models = {
            model.simulation_key: model
            for spec in specs
            for model in self._models(spec)
            if model.shape is not None and not self._is_simulated(model)
        }
        if not models:
            return False
        loads = [_simulated_load(model) for model in models.values()]
        for key, found in zip(models, self._simulate(loads), strict=True):
            known = {each.n_ctx: each for each in (*self._simulated.get(key, ()), *(found or ()))}
            self._simulated[key] = [known[n_ctx] for n_ctx in sorted(known)]
        return True

    def _is_simulated(self, model: _Model) -> bool:
        known = self._simulated.get(model.simulation_key)
        return known is not None and (not known or known[-1].n_ctx >= model.spec.n_ctx)

    def _models(self, spec: core.EngineSpec) -> Iterator[_Model]:
        others = (*spec.adapters, *([spec.projector] if spec.projector else []))
        target = self._shape_of(spec.weights)
        if target is not None and target.n_ctx_train:
            spec = replace(spec, n_ctx=min(spec.n_ctx, target.n_ctx_train))
        yield _Model(spec, spec.weights, target, False, sum(map(_file_bytes, others)))
        if spec.drafter and not spec.embeds:
            yield _Model(spec, spec.drafter, self._shape_of(spec.drafter), is_drafter=True)

    def _shape_of(self, path: str) -> Shape | None:
        try:
            return self._shape(Path(path))
        except StoreError:
            return None  # the engine reports what is wrong with the file

    def _estimate(self, model: _Model) -> tuple[Footprint, bool]:
        """Return the estimate without corrections, and whether it was simulated."""
        if model.shape is None:
            return _single_block_footprint(model.weights), False
        known = self._simulated.get(model.simulation_key)
        if known and known[-1].n_ctx >= model.spec.n_ctx:
            memory = _at(known, model.spec.n_ctx)
            return simulated_footprint(
                model.spec, model.shape, memory, extra_bytes=model.extra_bytes
            ), True
        return upper_bound(
            model.spec, model.shape, is_drafter=model.is_drafter, extra_bytes=model.extra_bytes
        ), False

    def _corrected(self, model: _Model) -> Footprint:
        estimate, is_simulated = self._estimate(model)
        try:
            key = model.correction_key(is_simulated=is_simulated)
            return self._corrections.correct(key, estimate)
        except OSError:
            return estimate  # the engine reports a missing file

    def record_usage(
        self, spec: core.EngineSpec, facts: core.EngineFacts, *, was_refused: bool
    ) -> None:
        """Record what a loaded engine took.  was_refused: an earlier attempt got no memory."""
        self._check(spec, facts)
        for model in self._models(spec):
            taken = facts.drafter if model.is_drafter else facts.target
            estimate, is_simulated = self._estimate(model)
            if taken is None:
                continue
            try:
                key = model.correction_key(is_simulated=is_simulated)
            except OSError:
                return  # the file was deleted meanwhile, so it is not loaded again
            if not model.is_drafter:
                estimate = layout_of(spec, len(estimate.blocks)).as_loaded(estimate)
            self._corrections.record(key, estimate, taken)
            if was_refused and not model.is_drafter:
                # The next estimate is then higher from the start.
                self._corrections.record_refusal(key)

    def _check(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        """Log a warning for a model that takes more than estimated, or less than simulated."""
        target, drafter = self.of(spec)
        layout = layout_of(spec, len(target.blocks))
        alone = layout.total_bytes(target)
        for model in self._models(spec):
            expected, taken = alone, facts.target
            if model.is_drafter:
                if facts.drafter is None:
                    continue
                expected, taken = layout.total_bytes(target, drafter) - alone, facts.drafter
            if taken.total_bytes > expected or self._estimate(model)[1]:
                _compare(model.weights, expected, taken)


def _simulated_load(model: _Model) -> core.SimulatedLoad:
    assert model.shape is not None
    n_ctx = model.spec.n_ctx
    halves = {max(n_ctx >> n, min(n_ctx, 256)) for n in range(_N_SIMULATED)}
    return core.SimulatedLoad(
        spec=model.spec,
        is_drafter=model.is_drafter,
        architecture=model.shape.architecture,
        n_vocab=model.shape.n_vocab,
        n_ctxs=tuple(sorted(halves)),
    )


def _at(known: Sequence[core.ContextMemory], n_ctx: int) -> core.ContextMemory:
    """Return the memory of a context, interpolated between the two measured ones next to it.

    That of a context shorter than all measured ones is the shortest one's.
    """
    above = next((memory for memory in known if memory.n_ctx >= n_ctx), known[-1])
    below = next((memory for memory in reversed(known) if memory.n_ctx <= n_ctx), above)
    if above.n_ctx <= below.n_ctx:
        return above
    share = (n_ctx - below.n_ctx) / (above.n_ctx - below.n_ctx)

    def between(low: int, high: int) -> int:
        return low + round(share * (high - low))

    return core.ContextMemory(
        n_ctx=n_ctx,
        layers=tuple(
            (layer, between(low, high))
            for (_, low), (layer, high) in zip(below.layers, above.layers, strict=False)
        ),
        n_cells=between(below.n_cells, above.n_cells),
        scratch_bytes=between(below.scratch_bytes, above.scratch_bytes),
        results_bytes=between(below.results_bytes, above.results_bytes),
    )


def _compare(weights: str, estimated: int, taken: core.ModelMemory) -> None:
    error = abs(taken.total_bytes - estimated)
    if error > _WRONG_BYTES and error > _WRONG_SHARE * taken.total_bytes:
        log.warning(
            "%s takes %.0f MiB, and %.0f MiB were expected",
            short_name(weights),
            taken.total_bytes / MIB,
            estimated / MIB,
        )


def _single_block_footprint(path: str) -> Footprint:
    """Return the footprint of an unreadable file: one block of its size."""
    return Footprint(
        blocks=(Block(weights_bytes=_file_bytes(path), cache_bytes=0),),
        input_bytes=0,
        output_bytes=0,
        extra_bytes=0,
        device_scratch_bytes=0,
        host_scratch_bytes=0,
    )


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
