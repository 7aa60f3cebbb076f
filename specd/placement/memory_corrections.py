"""Corrections of memory estimates, learned from what engines really took; kept in one file.

A correction holds for one file that is loaded in one way.  It changes the next estimate within
bounds, so that a wrong file makes no estimate absurd.  If the file cannot be read or written,
that is logged as a warning and nothing else fails.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec

from specd import core
from specd.placement.estimate import MIB, REFUSED_SHARE, Block, Footprint
from specd.store.file_identity import file_identities, file_identity
from specd.store.state_file import StateFile, check_version, valid_rows

log = logging.getLogger(__name__)

#: Name of the file in the state directory.
MEMORY_FILE: Final = "memory.json"
#: Most corrections that are kept; the least recently used ones are dropped.
MAX_CORRECTIONS: Final = 1000
_MAX_BYTES: Final = 4 * MIB
_MAX_DEVICES: Final = 64
_VERSION: Final = 1
_MAX_COUNT: Final = 2**53
#: Bounds of measured ÷ estimated: caches are counted cell by cell, scratch is a rule of thumb.
_CACHE, _SCRATCH = (0.5, 2.0), (0.25, 8.0)
_LEAST_WEIGHTS, _MOST_WEIGHTS = 0.75, 1.5
#: Bytes of an estimate below which no ratio is learned.
_TOO_SMALL: Final = MIB
#: Most and fewest refusals that count; a success halves them.  They are recorded at a success, and
#: until then only the request counts them, so none counts twice.
_MOST_REFUSALS, _MIN_REFUSALS = 8.0, 0.2
#: Most bytes that a process is believed to take on a device before it loads anything.
_MOST_OF_A_PROCESS: Final = 2 * 2**30

_Positive = Annotated[float, msgspec.Meta(gt=0, le=_MAX_COUNT)]
_Count = Annotated[int, msgspec.Meta(ge=-_MAX_COUNT, le=_MAX_COUNT)]


class CorrectionKey(msgspec.Struct, frozen=True):
    """What a correction holds for: one file, loaded in one way.

    weights, others: identities of files.  others: the drafter or the target, adapters, a projector.
    is_simulated: the corrected estimate is of a simulated load, otherwise it is an upper bound.
    """

    weights: str
    is_drafter: bool
    others: tuple[str, ...]
    kv_cache_type: str
    flash_attention: bool | None
    embeds: bool
    is_simulated: bool = True

    @classmethod
    def of_target(cls, spec: core.EngineSpec, *, is_simulated: bool = True) -> Self:
        """Return the key of the spec's target; raise OSError if a file is missing."""
        others = (spec.drafter, *spec.adapters, spec.projector)
        return cls._of(spec, spec.weights, others, is_drafter=False, is_simulated=is_simulated)

    @classmethod
    def of_drafter(cls, spec: core.EngineSpec, *, is_simulated: bool = True) -> Self:
        """Return the key of the spec's drafter; raise OSError if a file is missing."""
        assert spec.drafter is not None
        others = (spec.weights,)
        return cls._of(spec, spec.drafter, others, is_drafter=True, is_simulated=is_simulated)

    @classmethod
    def _of(
        cls,
        spec: core.EngineSpec,
        weights: str,
        others: tuple[str | None, ...],
        *,
        is_drafter: bool,
        is_simulated: bool,
    ) -> Self:
        return cls(
            weights=file_identity(Path(weights)),
            is_drafter=is_drafter,
            others=file_identities(path for path in others if path is not None),
            kv_cache_type=spec.kv_cache_type,
            flash_attention=spec.flash_attention,
            embeds=spec.embeds,
            is_simulated=is_simulated,
        )


class Correction(msgspec.Struct, frozen=True):
    """The difference between what one file takes and its estimate.

    used_at: unix seconds.  weights_bytes: measured − estimated.
    cache, scratch: measured ÷ estimated.
    refusals: how often memory was refused, halved at each success.
    """

    key: CorrectionKey
    used_at: Annotated[float, msgspec.Meta(ge=0, le=_MAX_COUNT)]
    weights_bytes: _Count = 0
    cache: _Positive = 1.0
    scratch: _Positive = 1.0
    refusals: Annotated[float, msgspec.Meta(ge=0, le=_MAX_COUNT)] = 0.0


class _Context(msgspec.Struct, frozen=True):
    device: str
    n_bytes: _Count


class _File(msgspec.Struct, frozen=True):
    version: int
    corrections: list[Correction] = msgspec.field(name="lessons")
    contexts: list[_Context] = []


class _Rows(msgspec.Struct, frozen=True):
    version: int
    corrections: list[msgspec.Raw] = msgspec.field(name="lessons")
    contexts: list[msgspec.Raw] = []


class _Known(msgspec.Struct):
    corrections: dict[CorrectionKey, Correction] = {}
    contexts: dict[str, int] = {}


class MemoryCorrections:
    """The corrections of all models, and the bytes that a process takes on each device.

    Reads and writes its file, so call it from a thread.  Safe to use from several threads.
    """

    def __init__(self, path: Path | None, *, unix_time: Callable[[], float] = time.time) -> None:
        """Keep the path; nothing is read yet.  path: None keeps everything in memory only."""
        what = "memory corrections"
        self._file = StateFile(path, _MAX_BYTES, what, _decode, _Known())
        self._unix_time = unix_time
        self._lock = threading.Lock()

    def correct(self, key: CorrectionKey, estimate: Footprint) -> Footprint:
        """Return the estimate, corrected by the last measurement under the same key."""
        correction = self._look().corrections.get(key)
        return _apply_correction(correction, estimate) if correction is not None else estimate

    def record(self, key: CorrectionKey, estimate: Footprint, taken: core.ModelMemory) -> None:
        """Record what a loaded model took.  estimate: before `correct`."""
        self._change(key, lambda correction: _updated_correction(correction, estimate, taken))

    def record_refusal(self, key: CorrectionKey) -> None:
        """Record that a load was refused memory although the estimate fitted."""
        self._change(key, _correction_after_refusal)

    def process_bytes(self) -> Mapping[str, int]:
        """Return by device id the bytes that a process takes before it loads anything."""
        return self._look().contexts

    def record_process_bytes(self, device: str, n_bytes: int) -> None:
        """Record the bytes that an engine took on a device beyond what it reports."""
        if not 0 < n_bytes <= _MOST_OF_A_PROCESS:
            return
        with self._lock:
            known = self._file.read_or_log()
            # Other processes disturb the measurement, so the largest recent value is kept.
            kept = max(n_bytes, round(0.9 * known.contexts.get(device, 0)))
            contexts = {**known.contexts, device: kept}
            contexts = dict(list(contexts.items())[-_MAX_DEVICES:])
            self._write(_Known(known.corrections, contexts))

    def _change(self, key: CorrectionKey, change: Callable[[Correction], Correction]) -> None:
        with self._lock:
            # Read again: another daemon may have written.
            known = self._file.read_or_log()
            now = max(self._unix_time(), 0.0)
            correction = change(known.corrections.get(key) or Correction(key, now))
            corrections = {
                **known.corrections,
                key: msgspec.structs.replace(correction, used_at=now),
            }
            self._write(_Known(corrections, known.contexts))

    # ----------------------------------------------------------------------- the file

    def _look(self) -> _Known:
        with self._lock:
            return self._file.read_or_log()

    def _write(self, known: _Known) -> None:
        known = _bounded(known)
        contexts = [_Context(device, n) for device, n in known.contexts.items()]
        corrections = list(known.corrections.values())
        self._file.replace_or_log(known, _File(_VERSION, corrections, contexts))


def _decode(data: bytes) -> _Known:
    """Return the content of the file; raise ValueError if it is damaged or of another version."""
    file = msgspec.json.decode(data, type=_Rows)
    check_version(file.version, _VERSION)
    corrections = {
        correction.key: correction
        for _, correction in valid_rows(enumerate(file.corrections), Correction)
    }
    measured = [
        each for _, each in valid_rows(enumerate(file.contexts), _Context) if each.n_bytes > 0
    ]
    contexts = {each.device: min(each.n_bytes, _MOST_OF_A_PROCESS) for each in measured}
    return _bounded(_Known(corrections, contexts))


def _bounded(known: _Known) -> _Known:
    """Return `known` with only the most recently used corrections, at most MAX_CORRECTIONS."""
    corrections = sorted(
        known.corrections.values(), key=lambda correction: correction.used_at, reverse=True
    )
    return _Known(
        {correction.key: correction for correction in corrections[:MAX_CORRECTIONS]}, known.contexts
    )


# -------------------------------------------------------------------------- corrections


def _updated_correction(
    correction: Correction, estimate: Footprint, taken: core.ModelMemory
) -> Correction:
    n_devices = sum(1 for name, _ in taken.by_device if name != "CPU")
    weights = estimate.weights_bytes + estimate.extra_bytes
    scratch = estimate.host_scratch_bytes + max(n_devices, 1) * estimate.device_scratch_bytes
    if n_devices:
        weights += estimate.tied_bytes
        scratch += estimate.staged_bytes
    refusals = correction.refusals / 2
    return msgspec.structs.replace(
        correction,
        weights_bytes=taken.weights_bytes - weights if taken.weights_bytes else 0,
        cache=_ratio(taken.cache_bytes, estimate.cache_bytes, _CACHE),
        scratch=_ratio(taken.scratch_bytes, scratch, _SCRATCH),
        refusals=refusals if refusals >= _MIN_REFUSALS else 0.0,
    )


def _correction_after_refusal(correction: Correction) -> Correction:
    return msgspec.structs.replace(
        correction, refusals=min(correction.refusals + 1, _MOST_REFUSALS)
    )


def _ratio(measured: int, estimated: int, bounds: tuple[float, float]) -> float:
    if measured <= 0 or estimated < _TOO_SMALL:
        return 1.0
    return _within(measured / estimated, bounds)


def _within(ratio: float, bounds: tuple[float, float]) -> float:
    return min(max(ratio, bounds[0]), bounds[1]) if math.isfinite(ratio) else 1.0


def _apply_correction(correction: Correction, estimate: Footprint) -> Footprint:
    whole = max(estimate.weights_bytes + estimate.extra_bytes, 1)
    more = 1 + REFUSED_SHARE * min(correction.refusals, _MOST_REFUSALS)
    weights = more * _within(1 + correction.weights_bytes / whole, (_LEAST_WEIGHTS, _MOST_WEIGHTS))
    cache, scratch = (
        more * _within(correction.cache, _CACHE),
        more * _within(correction.scratch, _SCRATCH),
    )
    return replace(
        estimate,
        blocks=tuple(
            Block(
                weights_bytes=round(weights * block.weights_bytes),
                cache_bytes=round(cache * block.cache_bytes),
            )
            for block in estimate.blocks
        ),
        input_bytes=round(weights * estimate.input_bytes),
        output_bytes=round(weights * estimate.output_bytes),
        tied_bytes=round(weights * estimate.tied_bytes),
        extra_bytes=round(weights * estimate.extra_bytes),
        device_scratch_bytes=round(scratch * estimate.device_scratch_bytes),
        host_scratch_bytes=round(scratch * estimate.host_scratch_bytes),
        staged_bytes=round(scratch * estimate.staged_bytes),
        transfer_bytes=round(scratch * estimate.transfer_bytes),
    )
