"""The history of pairs: measurements of this machine's engines, kept in one file.

A key has the contents of the files and all settings that change the speed, so that figures are used
only where they apply.  If the file cannot be read or written, that is logged as a warning and no
request fails.

A drafter that did not pay is tried again after a number of answers without it.  A trial of a
useless drafter takes 20 to 40 answers, each of which loses at most 5 % and two passes (the
controller's loss budget).  With 200 answers between trials that is about 1 % of the time, and a
quarter of that once the wait has grown.  Answers are counted, not days: with a monthly retry, a
model that is used once a month would try its drafter at each use, a busy one far too rarely.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Self, TypeVar

import msgspec

from specd import core
from specd.store.file_identity import file_identities, file_identity
from specd.store.state_file import StateFile, check_version, valid_rows

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
#: Answers without the drafter before its first retry.
FIRST_WAIT: Final = 200
#: Each retry that lost doubles the next wait, at most this many times.
MOST_DOUBLINGS: Final = 2

_K = TypeVar("_K")
_V = TypeVar("_V")
_Natural = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]
_Count = Annotated[int, msgspec.Meta(ge=-_MAX_COUNT, le=_MAX_COUNT)]


class PairKey(msgspec.Struct, frozen=True):
    """The identity of a pair on one machine, for all settings of its load.

    target, drafter, adapters: as `file_identity` returns.  machine: its name.
    """

    target: str
    drafter: str
    machine: str
    adapters: tuple[str, ...] = ()

    @classmethod
    def of(cls, target: Path, adapters: Iterable[Path], drafter: Path, machine: str) -> Self:
        """Return the key of these files; raise OSError if one is missing."""
        adapter_ids = file_identities(adapters)
        return cls(file_identity(target), file_identity(drafter), machine, adapter_ids)


class Retry(msgspec.Struct, frozen=True):
    """The count of answers towards the next retry of a pair that lost.

    n_answers: answers of the target without the drafter, since the pair lost the last time.
    n_retries: retries so far.
    """

    pair: PairKey
    n_answers: _Natural = 0
    n_retries: _Natural = 0

    @property
    def n_answers_left(self) -> int:
        """Answers without the drafter until the next retry, at least 1."""
        n_doublings = min(self.n_retries, MOST_DOUBLINGS)
        return max((FIRST_WAIT << n_doublings) - self.n_answers, 1)

    def after_answer(self) -> Retry:
        """Return the count after one more answer; the last answer of a wait starts the retry."""
        if self.n_answers_left > 1:
            return Retry(self.pair, self.n_answers + 1, self.n_retries)
        return Retry(self.pair, 0, min(self.n_retries + 1, _MAX_COUNT))


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


class HistoryFile(msgspec.Struct, frozen=True):
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
class KnownHistory:
    """The content of the file."""

    pairs: dict[HistoryKey, HistoryEntry]
    retries: dict[PairKey, Retry]


_NOTHING: Final = KnownHistory({}, {})


class History:
    """The history of all pairs.  `put` returns at once; call all else from a thread.

    path: None keeps everything in memory only.  unix_time: returns seconds.
    """

    def __init__(self, path: Path | None, *, unix_time: Callable[[], float] = time.time) -> None:
        self._file = StateFile(path, MAX_BYTES, "the history of pairs", decode_history, _NOTHING)
        self._unix_time = unix_time
        self._unsaved: dict[HistoryKey, HistoryEntry] = {}
        #: Answers counted since the last `save`, and the retries that they started.
        self._unsaved_retries: dict[PairKey, Retry] = {}
        self._n_put = 0
        self._known: tuple[KnownHistory, int, tuple[HistoryEntry, ...]] = _NOTHING, 0, ()
        self._lock = threading.Lock()  # of _unsaved and _unsaved_retries

    def get(self, key: HistoryKey) -> core.PairHistory | None:
        """What is known of the pair, from whichever daemon."""
        entry = self._unsaved.get(key) or self._file.read_or_log().pairs.get(key)
        return entry.history if entry is not None else None

    def put(self, key: HistoryKey, history: core.PairHistory) -> None:
        """Keep it until the next `save`; figures that cannot be are left out."""
        entry = HistoryEntry(key, max(self._unix_time(), 0.0), without_invalid(history))
        with self._lock:
            _put_last(self._unsaved, key, entry)
            self._n_put += 1

    def retry(self, pair: PairKey) -> Retry:
        """Return how many answers a pair that lost has waited, by all daemons."""
        return self._retry(self._file.read_or_log(), pair)

    def count_answer(self, pair: PairKey, n_retries: int) -> None:
        """Count an answer that a pair's target gave without the drafter; `save` writes the count.

        The last answer of a wait removes the drafter's figures: the next load tries it again.
        n_retries: identifies the wait that the answer belongs to; it does not count in a later one.
        """
        known = self._file.read_or_log()
        with self._lock:
            before = self._retry(known, pair)
            if before.n_retries != n_retries:
                return
            after = before.after_answer()
            if after.n_retries != n_retries:
                self._forget_drafter(known, pair)
            _put_last(self._unsaved_retries, pair, after)
            self._n_put += 1

    def _retry(self, known: KnownHistory, pair: PairKey) -> Retry:
        return _newest(pair, known.retries.get(pair), self._unsaved_retries.get(pair))

    def _forget_drafter(self, known: KnownHistory, pair: PairKey) -> None:
        for key, entry in (known.pairs | self._unsaved).items():
            if key.pair == pair:
                history = _without_drafter(entry.history)
                _put_last(self._unsaved, key, msgspec.structs.replace(entry, history=history))

    def save(self) -> bool:
        """Write all changes; return False, with one warning in the log, if that fails."""
        with self._lock:
            unsaved, retries = dict(self._unsaved), dict(self._unsaved_retries)
        if self._file.path is None or not (unsaved or retries):
            return True
        try:
            # Read again: another daemon, or `specd pairs --forget`, may have changed the file.
            known = self._file.read()
            counted = {
                pair: _newest(pair, known.retries.get(pair), retry)
                for pair, retry in retries.items()
            }
            self._write(KnownHistory(known.pairs | unsaved, known.retries | counted))
        except OSError as error:
            self._file.log_write_error(error)
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
        return self._file.path is None or not (self._unsaved or self._unsaved_retries)

    def in_state_dir(self, name: str) -> Path | None:
        """Return the path of another file in the same folder; None if there is no folder."""
        return self._file.path.with_name(name) if self._file.path is not None else None

    def entries(self) -> list[HistoryEntry]:
        """Return all entries of the file, the most recently used first."""
        return _by_use(self._file.read_or_log().pairs)

    def known(self) -> tuple[HistoryEntry, ...]:
        """Return all entries, written or not; the same object as long as nothing has changed."""
        written = self._file.read_or_log()
        if self._known[0] is not written or self._known[1] != self._n_put:
            with self._lock:
                entries = written.pairs | self._unsaved
                self._known = written, self._n_put, tuple(entries.values())
        return self._known[2]

    def forget(self, which: Callable[[HistoryKey], bool]) -> int:
        """Remove pairs from the file; return how many.  Raises OSError if it cannot be written."""
        known = self._file.read()
        kept = {key: entry for key, entry in known.pairs.items() if not which(key)}
        if len(kept) < len(known.pairs):
            self._write(KnownHistory(kept, known.retries))
        return len(known.pairs) - len(kept)

    def _write(self, known: KnownHistory) -> None:
        """Write the file; leave out counts of pairs without figures.  Raises OSError."""
        entries = _by_use(known.pairs)[:MAX_PAIRS]
        pairs = {entry.key.pair for entry in entries}
        retries = [retry for retry in known.retries.values() if retry.pair in pairs]
        self._file.write(HistoryFile(_VERSION, entries, retries))


def decode_history(data: bytes) -> KnownHistory:
    """Return the content; raise ValueError if it is damaged or of another version."""
    file = msgspec.json.decode(data, type=_Rows)
    check_version(file.version, _VERSION)
    pairs = {
        entry.key: msgspec.structs.replace(entry, history=without_invalid(entry.history))
        for _, entry in valid_rows(enumerate(file.pairs), HistoryEntry)
    }
    return KnownHistory(pairs, _decode_retries(file.retries))


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


def _newest(pair: PairKey, *counts: Retry | None) -> Retry:
    """Return the count that is furthest along, or a new one if there is none.

    Two daemons that share a file may count at the same time.  The larger count is kept, not the
    sum: that could count an answer twice, and a retry must not come too early.
    """
    known = [count for count in counts if count is not None]
    return max(known, key=lambda count: (count.n_retries, count.n_answers), default=Retry(pair))


def _without_drafter(history: core.PairHistory) -> core.PairHistory:
    """Return the history without the drafter's figures: a retry starts as a new pair does."""
    kept = tuple(band for band in history.bands if band.drafter != core.DrafterKind.MODEL)
    return replace(history, bands=kept)


# --------------------------------------------------------------------------- validation


def without_invalid(history: core.PairHistory) -> core.PairHistory:
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
