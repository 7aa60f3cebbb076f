"""Estimate the memory of an engine's models from their files and from earlier loads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from specd import core
from specd.errors import StoreError
from specd.placement.engine import footprints
from specd.placement.estimate import Block, Footprint
from specd.placement.memory_corrections import CorrectionKey, MemoryCorrections
from specd.placement.resident_usage import layout_of
from specd.placement.shortage import short_name
from specd.store.shape import Shape

log = logging.getLogger(__name__)

MIB: Final = 2**20
#: An estimate that is wrong by more than both is logged as a warning.
_WRONG_SHARE, _WRONG_BYTES = 0.05, 64 * MIB


class MemoryEstimator:
    """Estimates footprints and corrects them by what engines really took.  Reads files; blocks."""

    def __init__(self, shape: Callable[[Path], Shape], corrections: MemoryCorrections) -> None:
        """Keep the sources.  shape: reads the shape of a GGUF, or raises StoreError."""
        self._shape = shape
        self._corrections = corrections

    def of(self, spec: core.EngineSpec) -> tuple[Footprint, Footprint | None]:
        """Return the corrected footprints of target and drafter; None without a drafter."""
        target, drafter = self._estimates(spec)
        try:
            target = self._corrections.correct(CorrectionKey.of_target(spec), target)
            if drafter is not None:
                drafter = self._corrections.correct(CorrectionKey.of_drafter(spec), drafter)
        except OSError:
            pass  # the engine reports a missing file
        return target, drafter

    def _estimates(self, spec: core.EngineSpec) -> tuple[Footprint, Footprint | None]:
        others = (*spec.adapters, *([spec.projector] if spec.projector else []))
        drafter = self._shape_of(spec.drafter) if spec.drafter else None
        beside_target = _single_block_footprint(spec.drafter) if spec.drafter else None
        if (target := self._shape_of(spec.weights)) is None:
            return _single_block_footprint(spec.weights), beside_target
        found = footprints(spec, target, drafter, extra_bytes=sum(map(_file_bytes, others)))
        return found if drafter is not None else (found[0], beside_target)

    def _shape_of(self, path: str) -> Shape | None:
        try:
            return self._shape(Path(path))
        except StoreError:
            return None  # the engine reports what is wrong with the file

    def record_usage(
        self, spec: core.EngineSpec, facts: core.EngineFacts, *, was_refused: bool
    ) -> None:
        """Record what a loaded engine took.  was_refused: an earlier attempt got no memory."""
        self._check(spec, facts)
        target, drafter = self._estimates(spec)
        try:
            key = CorrectionKey.of_target(spec)
            layout = layout_of(spec, len(target.blocks))
            self._corrections.record(key, layout.as_loaded(target), facts.target)
            if was_refused:
                # The next estimate is then higher from the start.
                self._corrections.record_refusal(key)
            if drafter is not None and facts.drafter is not None:
                self._corrections.record(CorrectionKey.of_drafter(spec), drafter, facts.drafter)
        except OSError:
            pass  # the file was deleted meanwhile, so it is not loaded again

    def _check(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        target, drafter = self.of(spec)
        layout = layout_of(spec, len(target.blocks))
        alone = layout.total_bytes(target)
        _compare(spec.weights, alone, facts.target)
        if spec.drafter is not None and facts.drafter is not None:
            _compare(spec.drafter, layout.total_bytes(target, drafter) - alone, facts.drafter)


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
