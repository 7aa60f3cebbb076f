"""What engines took in truth, and how wrong the estimate was: one file, kept across restarts.

A lesson is for one file, loaded in one way, and corrects the next estimate of the same, within
bounds: whatever the file says, no estimate becomes absurd.  Nobody is refused anything for its
sake: a file that cannot be read or written is a warning.
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
from specd.placement.estimate import Block, Footprint
from specd.store.identity import identities_of, identity_of
from specd.store.state_file import Stamp, StateFile, sound

log = logging.getLogger(__name__)

#: Its name in the state directory.
MEMORY_FILE: Final = "memory.json"
#: More lessons than this, and those that were used longest ago are dropped.
MAX_LESSONS: Final = 1000
_MAX_BYTES: Final = 4 * 2**20
_MAX_DEVICES: Final = 64
_VERSION: Final = 1
_MAX_COUNT: Final = 2**53
#: What an estimate may be off by: caches are counted cell by cell, scratch is a rule of thumb.
_CACHE, _SCRATCH = (0.5, 2.0), (0.25, 8.0)
_LEAST_WEIGHTS, _MOST_WEIGHTS = 0.75, 1.5
#: Of an estimate that is so small, a ratio says nothing.
_TOO_SMALL: Final = 2**20
#: A refusal makes the next estimate so much larger; a success forgets half of them.
_REFUSED, _MOST_REFUSALS, _FORGOTTEN = 0.25, 8.0, 0.2
#: What a process takes on a device before anything lies there; more is somebody else's.
_MOST_OF_A_PROCESS: Final = 2 * 2**30

_Positive = Annotated[float, msgspec.Meta(gt=0, le=_MAX_COUNT)]
_Count = Annotated[int, msgspec.Meta(ge=-_MAX_COUNT, le=_MAX_COUNT)]


class Key(msgspec.Struct, frozen=True):
    """weights, others: identities.  others: of the drafter or the target, adapters, a projector."""

    weights: str
    is_drafter: bool
    others: tuple[str, ...]
    kv_cache_type: str
    flash_attention: bool | None
    embeds: bool

    @classmethod
    def of_target(cls, spec: core.EngineSpec) -> Self:
        """OSError where a file is not there."""
        others = (spec.drafter, *spec.adapters, spec.projector)
        return cls._of(spec, spec.weights, others, is_drafter=False)

    @classmethod
    def of_drafter(cls, spec: core.EngineSpec) -> Self:
        """OSError where a file is not there."""
        assert spec.drafter is not None
        return cls._of(spec, spec.drafter, (spec.weights,), is_drafter=True)

    @classmethod
    def _of(
        cls,
        spec: core.EngineSpec,
        weights: str,
        others: tuple[str | None, ...],
        *,
        is_drafter: bool,
    ) -> Self:
        return cls(
            weights=identity_of(Path(weights)),
            is_drafter=is_drafter,
            others=identities_of(path for path in others if path is not None),
            kv_cache_type=spec.kv_cache_type,
            flash_attention=spec.flash_attention,
            embeds=spec.embeds,
        )


class Lesson(msgspec.Struct, frozen=True):
    """Of weights the difference in bytes, of all else measured ÷ estimated.

    refusals: how often memory was refused of late.  used_at: unix seconds.
    """

    key: Key
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
    lessons: list[Lesson]
    contexts: list[_Context] = []


class _Rows(msgspec.Struct, frozen=True):
    version: int
    lessons: list[msgspec.Raw]
    contexts: list[msgspec.Raw] = []


class _Known(msgspec.Struct):
    lessons: dict[Key, Lesson] = {}
    contexts: dict[str, int] = {}


class Learned:
    """path None keeps everything in memory alone.  unix_time: seconds.

    Reads and writes the file: belongs into a thread.  Safe to call from several.
    """

    def __init__(self, path: Path | None, *, unix_time: Callable[[], float] = time.time) -> None:
        self._file = StateFile(path, _MAX_BYTES) if path is not None else None
        self._unix_time = unix_time
        self._known = _Known()
        self._stamp: Stamp | None = None
        self._lock = threading.Lock()

    def corrected(self, key: Key, estimate: Footprint) -> Footprint:
        """The estimate, made better by what was learned of the same."""
        lesson = self._look().lessons.get(key)
        return _applied(lesson, estimate) if lesson is not None else estimate

    def note(self, key: Key, estimate: Footprint, taken: core.ModelMemory) -> None:
        """A model is loaded.  estimate: as it was before `corrected`."""
        self._change(key, lambda lesson: _after(lesson, estimate, taken))

    def refused(self, key: Key) -> None:
        """It was not loaded: there was not enough memory, though there should have been."""
        self._change(key, _after_refusal)

    def process_bytes(self) -> Mapping[str, int]:
        """By a device's id: what a process takes there before anything lies in it."""
        return self._look().contexts

    def note_process_bytes(self, device: str, n_bytes: int) -> None:
        """What an engine took of a device beyond what it says that it took."""
        if not 0 < n_bytes <= _MOST_OF_A_PROCESS:
            return
        with self._lock:
            known = self._read_or_complain()
            # What is measured is what others did meanwhile, too: the most of late is believed.
            kept = max(n_bytes, round(0.9 * known.contexts.get(device, 0)))
            contexts = {**known.contexts, device: kept}
            contexts = dict(list(contexts.items())[-_MAX_DEVICES:])
            self._write_or_complain(_Known(known.lessons, contexts))

    def _change(self, key: Key, change: Callable[[Lesson], Lesson]) -> None:
        with self._lock:
            # Read again: another daemon may have learned.
            known = self._read_or_complain()
            now = max(self._unix_time(), 0.0)
            lesson = change(known.lessons.get(key) or Lesson(key, now))
            lessons = {**known.lessons, key: msgspec.structs.replace(lesson, used_at=now)}
            self._write_or_complain(_Known(lessons, known.contexts))

    # ----------------------------------------------------------------------- the file

    def _look(self) -> _Known:
        with self._lock:
            return self._read_or_complain()

    def _read_or_complain(self) -> _Known:
        """What this process knows, where the file says nothing new."""
        if self._file is None:
            return self._known
        try:
            if (stamp := self._file.stamp()) != self._stamp:
                self._known = self._file.read(_decode) or _Known()
                self._stamp = stamp
        except OSError as error:
            self._complain("cannot read what was learned of memory in %s: %s", error)
        return self._known

    def _write_or_complain(self, known: _Known) -> None:
        self._known = _bounded(known)
        if self._file is None:
            return
        contexts = [_Context(device, n) for device, n in self._known.contexts.items()]
        lessons = list(self._known.lessons.values())
        try:
            self._file.write(msgspec.json.encode(_File(_VERSION, lessons, contexts)))
            self._stamp = self._file.stamp()
        except OSError as error:
            self._complain("cannot keep what was learned of memory in %s: %s", error)

    def _complain(self, words: str, error: Exception) -> None:
        assert self._file is not None
        self._file.complain(words, error)


def _decode(data: bytes) -> _Known:
    """ValueError for bytes that are not of this version."""
    try:
        file = msgspec.json.decode(data, type=_Rows)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if file.version != _VERSION:
        raise ValueError(f"its version is {file.version}, not {_VERSION}")
    lessons = {lesson.key: lesson for _, lesson in sound(enumerate(file.lessons), Lesson)}
    measured = [each for _, each in sound(enumerate(file.contexts), _Context) if each.n_bytes > 0]
    contexts = {each.device: min(each.n_bytes, _MOST_OF_A_PROCESS) for each in measured}
    return _bounded(_Known(lessons, contexts))


def _bounded(known: _Known) -> _Known:
    """The lessons that were used last, and no more of them than are wanted."""
    lessons = sorted(known.lessons.values(), key=lambda lesson: lesson.used_at, reverse=True)
    return _Known({lesson.key: lesson for lesson in lessons[:MAX_LESSONS]}, known.contexts)


# ------------------------------------------------------------------------------ lessons


def _after(lesson: Lesson, estimate: Footprint, taken: core.ModelMemory) -> Lesson:
    n_devices = sum(1 for name, _ in taken.by_device if name != "CPU")
    weights = estimate.weights_bytes + estimate.extra_bytes
    scratch = estimate.host_scratch_bytes + max(n_devices, 1) * estimate.device_scratch_bytes
    if n_devices:
        weights += estimate.tied_bytes
        scratch += estimate.staged_bytes
    refusals = lesson.refusals / 2
    return msgspec.structs.replace(
        lesson,
        weights_bytes=taken.weights_bytes - weights if taken.weights_bytes else 0,
        cache=_ratio(taken.cache_bytes, estimate.cache_bytes, _CACHE),
        scratch=_ratio(taken.scratch_bytes, scratch, _SCRATCH),
        refusals=refusals if refusals >= _FORGOTTEN else 0.0,
    )


def _after_refusal(lesson: Lesson) -> Lesson:
    return msgspec.structs.replace(lesson, refusals=min(lesson.refusals + 1, _MOST_REFUSALS))


def _ratio(measured: int, estimated: int, bounds: tuple[float, float]) -> float:
    if measured <= 0 or estimated < _TOO_SMALL:
        return 1.0
    return _within(measured / estimated, bounds)


def _within(ratio: float, bounds: tuple[float, float]) -> float:
    return min(max(ratio, bounds[0]), bounds[1]) if math.isfinite(ratio) else 1.0


def _applied(lesson: Lesson, estimate: Footprint) -> Footprint:
    whole = max(estimate.weights_bytes + estimate.extra_bytes, 1)
    more = 1 + _REFUSED * min(lesson.refusals, _MOST_REFUSALS)
    weights = more * _within(1 + lesson.weights_bytes / whole, (_LEAST_WEIGHTS, _MOST_WEIGHTS))
    cache, scratch = more * _within(lesson.cache, _CACHE), more * _within(lesson.scratch, _SCRATCH)
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
        handed_bytes=round(scratch * estimate.handed_bytes),
    )
