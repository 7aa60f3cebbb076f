"""The history of pairs: measurements of this machine's engines, kept in one file.

A key has the contents of the files and all settings that change the speed, so that figures are used
only where they apply.  If the file cannot be read or written, that is logged as a warning and no
request fails.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Self, TypeVar

import msgspec

from specd import core
from specd.pairs.retries import PairKey, Retry, newest, without_drafter
from specd.store.file_identity import file_identities, file_identity
from specd.store.state_file import Stamp, StateFile, valid_rows

log = logging.getLogger(__name__)

#: Name of the file in the state directory.
HISTORY_FILE: Final = "history.json"
#: Most pairs that are kept; the least recently used ones are dropped.
MAX_PAIRS: Final = 500
#: Largest valid file, far above the size of so many pairs.
MAX_BYTES: Final = 16 * 2**20
_VERSION: Final = 1
_MAX_COUNT: Final = 2**53
_MAX_BINS: Final = 64

_K = TypeVar("_K")
_V = TypeVar("_V")
_Count = Annotated[int, msgspec.Meta(ge=-_MAX_COUNT, le=_MAX_COUNT)]


class HistoryKey(msgspec.Struct, frozen=True):
    """What a history belongs to: a pair, the settings of its load, and a machine.

    target, drafter, adapters: as `file_identity` returns; "" for no drafter.  machine: its name.
    """

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
        """Return the key of a spec; raise OSError if a file is missing."""
        return cls(
            target=file_identity(Path(spec.weights)),
            drafter=file_identity(Path(spec.drafter)) if spec.drafter else "",
            kv_cache_type=spec.kv_cache_type,
            flash_attention=spec.flash_attention,
            n_gpu_layers=spec.n_gpu_layers,
            main_gpu=spec.main_gpu,
            n_threads=spec.n_threads,
            machine=machine,
            adapters=file_identities(spec.adapters),
        )

    @property
    def pair(self) -> PairKey:
        return PairKey(self.target, self.drafter, self.machine, self.adapters)


class HistoryEntry(msgspec.Struct, frozen=True):
    """The history of one key.  used_at: unix seconds of the last change."""

    key: HistoryKey
    used_at: Annotated[float, msgspec.Meta(ge=0, le=_MAX_COUNT)]
    history: core.PairHistory


class _File(msgspec.Struct, frozen=True):
    version: int
    pairs: list[HistoryEntry]
    retries: list[Retry] = []


class _Rows(msgspec.Struct, frozen=True):
    """The file, not decoded further, so that damage in `retries` affects nothing else.

    retries: earlier versions write none.
    """

    version: int
    pairs: list[msgspec.Raw]
    retries: msgspec.Raw = msgspec.Raw(b"[]")


@dataclass(frozen=True, slots=True)
class _Known:
    """The content of the file."""

    pairs: dict[HistoryKey, HistoryEntry]
    retries: dict[PairKey, Retry]


_NOTHING: Final = _Known({}, {})


class History:
    """The history of all pairs.  `put` returns at once; call all else from a thread.

    path: None keeps everything in memory only.  unix_time: returns seconds.
    """

    def __init__(self, path: Path | None, *, unix_time: Callable[[], float] = time.time) -> None:
        self._file = StateFile(path, MAX_BYTES) if path is not None else None
        self._unix_time = unix_time
        self._unsaved: dict[HistoryKey, HistoryEntry] = {}
        #: Answers counted since the last `save`, and the retries that they started.
        self._unsaved_retries: dict[PairKey, Retry] = {}
        self._read_last: tuple[Stamp | None, _Known] = None, _NOTHING
        self._n_put = 0
        self._known: tuple[_Known, int, tuple[HistoryEntry, ...]] = _NOTHING, 0, ()
        self._lock = threading.Lock()  # of _unsaved and _unsaved_retries

    def get(self, key: HistoryKey) -> core.PairHistory | None:
        """What is known of the pair, from whichever daemon."""
        entry = self._unsaved.get(key) or self._read_or_log().pairs.get(key)
        return entry.history if entry is not None else None

    def put(self, key: HistoryKey, history: core.PairHistory) -> None:
        """Keep it until the next `save`; figures that cannot be are left out."""
        entry = HistoryEntry(key, max(self._unix_time(), 0.0), _without_invalid(history))
        with self._lock:
            _put_last(self._unsaved, key, entry)
            self._n_put += 1

    def retry(self, pair: PairKey) -> Retry:
        """Return how many answers a pair that lost has waited, by all daemons."""
        return self._retry(self._read_or_log(), pair)

    def count_answer(self, pair: PairKey, n_retries: int) -> None:
        """Count an answer that a pair's target gave without the drafter; `save` writes the count.

        The last answer of a wait removes the drafter's figures: the next load tries it again.
        n_retries: identifies the wait that the answer belongs to; it does not count in a later one.
        """
        known = self._read_or_log()
        with self._lock:
            before = self._retry(known, pair)
            if before.n_retries != n_retries:
                return
            after = before.after_answer()
            if after.n_retries != n_retries:
                self._forget_drafter(known, pair)
            _put_last(self._unsaved_retries, pair, after)
            self._n_put += 1

    def _retry(self, known: _Known, pair: PairKey) -> Retry:
        return newest(pair, known.retries.get(pair), self._unsaved_retries.get(pair))

    def _forget_drafter(self, known: _Known, pair: PairKey) -> None:
        for key, entry in (known.pairs | self._unsaved).items():
            if key.pair == pair:
                history = without_drafter(entry.history)
                _put_last(self._unsaved, key, msgspec.structs.replace(entry, history=history))

    def save(self) -> bool:
        """Write all changes; return False, with one warning in the log, if that fails."""
        with self._lock:
            unsaved, retries = dict(self._unsaved), dict(self._unsaved_retries)
        if self._file is None or not (unsaved or retries):
            return True
        try:
            # Read again: another daemon, or `specd pairs --forget`, may have changed the file.
            known = self._read()
            counted = {
                pair: newest(pair, known.retries.get(pair), retry)
                for pair, retry in retries.items()
            }
            self._write(_Known(known.pairs | unsaved, known.retries | counted))
        except OSError as error:
            self._log_error("cannot write the history of pairs to %s: %s", error)
            return False
        with self._lock:
            for key, entry in unsaved.items():
                if self._unsaved.get(key) is entry:
                    del self._unsaved[key]
            for pair, retry in retries.items():
                if self._unsaved_retries.get(pair) is retry:
                    del self._unsaved_retries[pair]
        return True

    @property
    def is_saved(self) -> bool:
        return self._file is None or not (self._unsaved or self._unsaved_retries)

    def in_state_dir(self, name: str) -> Path | None:
        """Return the path of another file in the same folder; None if there is no folder."""
        return self._file.path.with_name(name) if self._file is not None else None

    def entries(self) -> list[HistoryEntry]:
        """Return all entries of the file, the most recently used first."""
        return _by_use(self._read_or_log().pairs)

    def known(self) -> tuple[HistoryEntry, ...]:
        """Return all entries, written or not; the same object as long as nothing has changed."""
        written = self._read_or_log()
        if self._known[0] is not written or self._known[1] != self._n_put:
            with self._lock:
                entries = written.pairs | self._unsaved
                self._known = written, self._n_put, tuple(entries.values())
        return self._known[2]

    def forget(self, which: Callable[[HistoryKey], bool]) -> int:
        """Remove pairs from the file; return how many.  Raises OSError if it cannot be written."""
        known = self._read()
        kept = {key: entry for key, entry in known.pairs.items() if not which(key)}
        if len(kept) < len(known.pairs):
            self._write(_Known(kept, known.retries))
        return len(known.pairs) - len(kept)

    # ----------------------------------------------------------------------- the file

    def _read_or_log(self) -> _Known:
        try:
            return self._read()
        except OSError as error:
            self._log_error("cannot read the history of pairs from %s: %s", error)
            return _NOTHING

    def _read(self) -> _Known:
        """Return the content; empty if there is no file or it was damaged.  Raises OSError.

        A damaged file is renamed.
        """
        if self._file is None:
            return _NOTHING
        stamp, (known_stamp, known) = self._file.stamp(), self._read_last
        if stamp != known_stamp:
            known = self._file.read(_decode) or _NOTHING
            self._read_last = stamp, known
        return known

    def _write(self, known: _Known) -> None:
        """Write the file; leave out counts of pairs without figures.  Raises OSError."""
        assert self._file is not None
        entries = _by_use(known.pairs)[:MAX_PAIRS]
        pairs = {entry.key.pair for entry in entries}
        retries = [retry for retry in known.retries.values() if retry.pair in pairs]
        self._file.write(msgspec.json.encode(_File(_VERSION, entries, retries)))

    def _log_error(self, message: str, error: Exception) -> None:
        assert self._file is not None
        self._file.warn_once(message, error)


def _decode(data: bytes) -> _Known:
    """Return the content; raise ValueError if it is damaged or of another version."""
    try:
        file = msgspec.json.decode(data, type=_Rows)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if file.version != _VERSION:
        raise ValueError(f"its version is {file.version}, not {_VERSION}")
    pairs = {
        entry.key: msgspec.structs.replace(entry, history=_without_invalid(entry.history))
        for _, entry in valid_rows(enumerate(file.pairs), HistoryEntry)
    }
    return _Known(pairs, _decode_retries(file.retries))


def _decode_retries(raw: msgspec.Raw) -> dict[PairKey, Retry]:
    """Decode the counts; if they are damaged, drop them, and pairs that lost wait anew."""
    try:
        rows = msgspec.json.decode(raw, type=list[msgspec.Raw])
        return {retry.pair: retry for _, retry in valid_rows(enumerate(rows), Retry)}
    except ValueError as error:
        log.warning("the counts of answers until drafters are tried again are damaged: %s", error)
        return {}


def _put_last(unsaved: dict[_K, _V], key: _K, value: _V) -> None:
    """Put the value last; drop the oldest ones beyond MAX_PAIRS."""
    unsaved.pop(key, None)
    unsaved[key] = value
    while len(unsaved) > MAX_PAIRS:
        del unsaved[next(iter(unsaved))]


def _by_use(entries: dict[HistoryKey, HistoryEntry]) -> list[HistoryEntry]:
    return sorted(entries.values(), key=lambda entry: entry.used_at, reverse=True)


# --------------------------------------------------------------------------- validation


def _without_invalid(history: core.PairHistory) -> core.PairHistory:
    """Return the history without impossible figures."""
    return replace(
        history,
        bands=tuple(filter(_is_valid, history.bands[:_MAX_BINS])),
        target_s=tuple(
            (width, seconds)
            for width, seconds in history.target_s[:_MAX_BINS]
            if 0 < width < _MAX_COUNT and 0 < seconds < math.inf
        ),
    )


def _is_valid(band: core.BandHistory) -> bool:
    estimates = (*band.by_confidence, *band.by_depth)
    counts = (band.band, band.n_requests, band.n_drafted, band.n_accepted)
    return (
        len(estimates) <= 2 * _MAX_BINS
        and all(0 <= mean <= 1 and 0 <= weight < math.inf for mean, weight in estimates)
        and all(0 <= n < _MAX_COUNT for n in counts)
        and (band.gain is None or 0 < band.gain < math.inf)
    )
