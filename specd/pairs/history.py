"""What engines learned of their pairs on this machine: one file, kept across restarts.

Its keys are contents and all that decides a speed, so that no figure is believed where it does not
hold.  Nobody is refused an answer for its sake: a file that cannot be read or written is a warning.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec

from specd import core
from specd.store.identity import identities_of, identity_of
from specd.store.state_file import Stamp, StateFile, sound

log = logging.getLogger(__name__)

#: Its name in the state directory.
HISTORY_FILE: Final = "history.json"
#: More pairs than this, and those that were used longest ago are dropped.
MAX_PAIRS: Final = 500
#: Far above what so many pairs take: more is damage.
MAX_BYTES: Final = 16 * 2**20
_VERSION: Final = 1
_MAX_COUNT: Final = 2**53
_MAX_BINS: Final = 64

_Count = Annotated[int, msgspec.Meta(ge=-_MAX_COUNT, le=_MAX_COUNT)]


class Key(msgspec.Struct, frozen=True):
    """target, drafter, adapters: as `identity_of` says; no drafter is "".  machine: its name."""

    target: str
    drafter: str
    kv_cache_type: str
    flash_attention: bool | None
    n_gpu_layers: _Count
    main_gpu: _Count | None
    n_threads: _Count
    machine: str
    adapters: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: core.EngineSpec, machine: str) -> Self:
        """OSError where a file is not there."""
        return cls(
            target=identity_of(Path(spec.weights)),
            drafter=identity_of(Path(spec.drafter)) if spec.drafter else "",
            kv_cache_type=spec.kv_cache_type,
            flash_attention=spec.flash_attention,
            n_gpu_layers=spec.n_gpu_layers,
            main_gpu=spec.main_gpu,
            n_threads=spec.n_threads,
            machine=machine,
            adapters=identities_of(spec.adapters),
        )


class Entry(msgspec.Struct, frozen=True):
    """used_at: unix seconds of the last lesson."""

    key: Key
    used_at: Annotated[float, msgspec.Meta(ge=0, le=_MAX_COUNT)]
    history: core.PairHistory


class _File(msgspec.Struct, frozen=True):
    version: int
    pairs: list[Entry]


class _Rows(msgspec.Struct, frozen=True):
    version: int
    pairs: list[msgspec.Raw]


class History:
    """path None keeps everything in memory alone.  unix_time: seconds.

    `put` never waits.  All else works on the file, and belongs into a thread.
    """

    def __init__(self, path: Path | None, *, unix_time: Callable[[], float] = time.time) -> None:
        self._file = StateFile(path, MAX_BYTES) if path is not None else None
        self._unix_time = unix_time
        self._unsaved: dict[Key, Entry] = {}
        self._read_last: tuple[Stamp | None, dict[Key, Entry]] = None, {}
        self._n_put = 0
        self._known: tuple[dict[Key, Entry], int, tuple[Entry, ...]] = {}, 0, ()
        self._lock = threading.Lock()  # of _unsaved

    def get(self, key: Key) -> core.PairHistory | None:
        """What is known of the pair, from whichever daemon."""
        entry = self._unsaved.get(key) or self._read_or_complain().get(key)
        return entry.history if entry is not None else None

    def put(self, key: Key, history: core.PairHistory) -> None:
        """Keep it until the next `save`; figures that cannot be are left out."""
        entry = Entry(key, max(self._unix_time(), 0.0), _sound(history))
        with self._lock:
            self._unsaved.pop(key, None)
            self._unsaved[key] = entry
            self._n_put += 1
            while len(self._unsaved) > MAX_PAIRS:
                del self._unsaved[next(iter(self._unsaved))]

    def save(self) -> bool:
        """Write what is not written yet; False where that fails, which is said once."""
        with self._lock:
            unsaved = dict(self._unsaved)
        if self._file is None or not unsaved:
            return True
        try:
            # Read again: another daemon may have learned, a person may have made it forget.
            self._write(self._read() | unsaved)
        except OSError as error:
            self._complain("cannot keep what was learned of the pairs in %s: %s", error)
            return False
        with self._lock:
            for key, entry in unsaved.items():
                if self._unsaved.get(key) is entry:
                    del self._unsaved[key]
        return True

    @property
    def is_saved(self) -> bool:
        return self._file is None or not self._unsaved

    def beside(self, name: str) -> Path | None:
        """Another file of the same state."""
        return self._file.path.with_name(name) if self._file is not None else None

    def entries(self) -> list[Entry]:
        """All that is written, the last used first."""
        return _by_use(self._read_or_complain())

    def known(self) -> tuple[Entry, ...]:
        """All, written or not; cheap as long as nothing was learned, and the same object then."""
        written = self._read_or_complain()
        if self._known[0] is not written or self._known[1] != self._n_put:
            with self._lock:
                entries = written | self._unsaved
                self._known = written, self._n_put, tuple(entries.values())
        return self._known[2]

    def forget(self, which: Callable[[Key], bool]) -> int:
        """Remove pairs from the file; says how many.  OSError where it cannot be written."""
        known = self._read()
        kept = {key: entry for key, entry in known.items() if not which(key)}
        if len(kept) < len(known):
            self._write(kept)
        return len(known) - len(kept)

    # ----------------------------------------------------------------------- the file

    def _read_or_complain(self) -> dict[Key, Entry]:
        try:
            return self._read()
        except OSError as error:
            self._complain("cannot read what was learned of the pairs in %s: %s", error)
            return {}

    def _read(self) -> dict[Key, Entry]:
        """Empty where there is no file, or a damaged one, which is set aside.  OSError."""
        if self._file is None:
            return {}
        stamp, (known_stamp, known) = self._file.stamp(), self._read_last
        if stamp != known_stamp:
            known = self._file.read(_decode) or {}
            self._read_last = stamp, known
        return known

    def _write(self, entries: dict[Key, Entry]) -> None:
        """OSError."""
        assert self._file is not None
        self._file.write(msgspec.json.encode(_File(_VERSION, _by_use(entries)[:MAX_PAIRS])))

    def _complain(self, words: str, error: Exception) -> None:
        assert self._file is not None
        self._file.complain(words, error)


def _decode(data: bytes) -> dict[Key, Entry]:
    """ValueError for bytes that are no history of this version."""
    try:
        file = msgspec.json.decode(data, type=_Rows)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if file.version != _VERSION:
        raise ValueError(f"its version is {file.version}, not {_VERSION}")
    return {
        entry.key: msgspec.structs.replace(entry, history=_sound(entry.history))
        for _, entry in sound(enumerate(file.pairs), Entry)
    }


def _by_use(entries: dict[Key, Entry]) -> list[Entry]:
    return sorted(entries.values(), key=lambda entry: entry.used_at, reverse=True)


# --------------------------------------------------------------------------- what can be


def _sound(history: core.PairHistory) -> core.PairHistory:
    """The same without figures that nobody can have measured."""
    return replace(
        history,
        bands=tuple(filter(_is_sound, history.bands[:_MAX_BINS])),
        target_s=tuple(
            (width, seconds)
            for width, seconds in history.target_s[:_MAX_BINS]
            if 0 < width < _MAX_COUNT and 0 < seconds < math.inf
        ),
    )


def _is_sound(band: core.BandHistory) -> bool:
    estimates = (*band.by_confidence, *band.by_depth)
    counts = (band.band, band.n_requests, band.n_drafted, band.n_accepted)
    return (
        len(estimates) <= 2 * _MAX_BINS
        and all(0 <= mean <= 1 and 0 <= weight < math.inf for mean, weight in estimates)
        and all(0 <= n < _MAX_COUNT for n in counts)
        and (band.gain is None or 0 < band.gain < math.inf)
    )
