"""A cache of GGUF headers and of the compatibility of their vocabularies, kept in one file.

A blob never changes, so each version of specd reads its header once, for the store and for pairs.
Both files are read again only if two fingerprints do not decide, or to name a difference; that
result is cached too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

import specd
from specd.errors import SpecdError, StoreError
from specd.pairs import refusals
from specd.pairs.compatibility import difference
from specd.pairs.fingerprints import Fingerprint, fits
from specd.pairs.history import History
from specd.pairs.refusals import Refusal
from specd.pairs.vocabulary import Vocabulary, vocabulary_of
from specd.store.file_identity import FileCache, file_identity
from specd.store.gguf import read_header
from specd.store.gguf_metadata import GgufMetadata, metadata_of
from specd.store.shape import Shape, shape_of
from specd.store.state_file import StateFile, valid_rows

log = logging.getLogger(__name__)

#: Name of the file in the state directory.
VOCABULARIES_FILE: Final = "vocabularies.json"
#: Most files and verdicts that are kept; the oldest are dropped.
MAX_FILES: Final = 2000
MAX_VERDICTS: Final = 4000
#: Largest valid file, far above the size of so many entries.
MAX_BYTES: Final = 64 * 2**20
#: Version of the format and of the header's interpretation; other versions' files are not used.
_VERSION: Final = f"{specd.__version__} 3"
#: Pause after a write, as a multiple of its duration.
_WRITING_SHARE: Final = 20.0

#: Pause after a failed write.
_AFTER_A_FAILURE_S: Final = 10.0

_K = TypeVar("_K")
_V = TypeVar("_V")


class _Header(msgspec.Struct, frozen=True):
    """The cached facts of one file.  vocabulary: the name of its fingerprint."""

    facts: GgufMetadata
    shape: Shape
    vocabulary: str


class _Verdict(msgspec.Struct, frozen=True, array_like=True):
    """The difference between two vocabularies, by name; "" if they are compatible."""

    target: str
    drafter: str
    difference: str


class _Version(msgspec.Struct, frozen=True):
    version: str


class _File(msgspec.Struct, frozen=True):
    version: str
    files: dict[str, _Header]
    vocabularies: dict[str, Fingerprint]
    verdicts: list[_Verdict]


class _Rows(msgspec.Struct, frozen=True):
    version: str
    files: dict[str, msgspec.Raw]
    vocabularies: dict[str, msgspec.Raw]
    verdicts: list[msgspec.Raw]


class Vocabularies:
    """The cache of headers and vocabularies.  Reads files.  Safe to use from several threads.

    path: None keeps everything in memory only.  clock: returns seconds.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        what = "the cache of vocabularies"
        self._file = StateFile(path, MAX_BYTES, what, _decode, _File(_VERSION, {}, {}, []))
        self._clock = clock
        self.known = self._file.read_or_log()
        self._verdicts = {(v.target, v.drafter): v.difference for v in self.known.verdicts}
        self._fitting: dict[tuple[str, str], bool] = {}
        self._headers: FileCache[_Header] = FileCache(self._look)
        self._lock = threading.Lock()  # of writing
        self._unsaved = False
        self._next_save = clock()

    @classmethod
    def in_state_dir(cls, history: History | None) -> Self:
        """Return the cache in the folder of the history, or one in memory if there is none."""
        return cls(history.in_state_dir(VOCABULARIES_FILE) if history is not None else None)

    def facts(self, weights: Path) -> GgufMetadata:
        """Return the metadata of a file; raise StoreError."""
        return self._headers.get(weights).facts

    def read(self, weights: Path) -> tuple[GgufMetadata, Shape]:
        """Return metadata and shape of a file, for `store.Library`; raise StoreError."""
        header = self._headers.get(weights)
        return header.facts, header.shape

    def fits(self, target: Path, drafter: Path) -> bool:
        """Return whether the vocabularies are compatible; raise StoreError."""
        ours, theirs = self._name(target), self._name(drafter)
        if ours == theirs:
            return True
        known = self._fitting.get((ours, theirs))
        if known is None:
            fingerprints = self.known.vocabularies
            known = fits(fingerprints[ours], fingerprints[theirs])
            if known is None:
                known = not self.difference(target, drafter)
            self._fitting[ours, theirs] = known
        return known

    def difference(self, target: Path, drafter: Path) -> str:
        """Return why they are incompatible, as the end of a sentence, or ""; raise StoreError."""
        key = self._name(target), self._name(drafter)
        if key[0] == key[1]:
            return ""
        if key not in self._verdicts:
            found = difference(_read(target), _read(drafter)) or ""
            self._verdicts[key] = found
            self._unsaved = True
        return self._verdicts[key]

    def refusal(
        self, drafter: str, weights: Path, target: tuple[str, Path] | None = None
    ) -> Refusal | None:
        """Return why the drafter cannot be used for the target; None if it can.

        target: its name and weights; None checks only what holds for every target.
        """
        try:
            if refusal := refusals.of_drafter(drafter, self.facts(weights)):
                return refusal
            found = self.difference(target[1], weights) if target else ""
        except SpecdError as error:
            return refusals.unreadable(drafter, error)
        return refusals.of_vocabularies(target[0], drafter, found) if target and found else None

    def _name(self, weights: Path) -> str:
        return self._headers.get(weights).vocabulary

    def _look(self, weights: Path) -> _Header:
        try:
            identity = file_identity(weights)
        except OSError as error:
            raise StoreError(f"cannot read {weights}: {error.strerror or error}") from error
        if identity not in self.known.files:
            header = read_header(weights)
            fingerprint = Fingerprint.of(header)
            self.known.vocabularies.setdefault(fingerprint.name, fingerprint)
            facts, shape = metadata_of(header), shape_of(header)
            self.known.files[identity] = _Header(facts, shape, fingerprint.name)
            self._unsaved = True
        return self.known.files[identity]

    # ----------------------------------------------------------------------- the file

    def save(self) -> None:
        """Write new entries, unless the last write was a moment ago: then a later call does it."""
        if self._file.path is None or not self._unsaved or self._clock() < self._next_save:
            return
        if not self._lock.acquire(blocking=False):
            return  # another thread is writing
        try:
            began, self._unsaved = self._clock(), False
            self._file.write(self._merged())
            ended = self._clock()
            self._next_save = ended + _WRITING_SHARE * (ended - began)
        except OSError as error:
            self._unsaved, self._next_save = True, self._clock() + _AFTER_A_FAILURE_S
            self._file.log_write_error(error)
        finally:
            self._lock.release()

    def _merged(self) -> _File:
        """Return the new content of the file, with entries that other processes have written."""
        written = self._file.read_or_log()
        files = _newest({**written.files, **self.known.files}, MAX_FILES)
        all_known = {**written.vocabularies, **self.known.vocabularies}
        names = {header.vocabulary for header in files.values()}
        verdicts = {(v.target, v.drafter): v.difference for v in written.verdicts}
        verdicts.update(self._verdicts.copy())
        return _File(
            version=_VERSION,
            files=files,
            vocabularies={name: all_known[name] for name in names},
            verdicts=[
                _Verdict(target, drafter, words)
                for (target, drafter), words in _newest(verdicts, MAX_VERDICTS).items()
                if {target, drafter} <= names
            ],
        )


def _read(path: Path) -> Vocabulary:
    return vocabulary_of(read_header(path))


def _newest(known: dict[_K, _V], n: int) -> dict[_K, _V]:
    """Return the last `n` entries."""
    return dict(islice(known.items(), max(len(known) - n, 0), None))


def _decode(data: bytes) -> _File:
    """Return the content, empty if it is of another version; raise ValueError if damaged."""
    if msgspec.json.decode(data, type=_Version).version != _VERSION:
        return _File(_VERSION, {}, {}, [])
    file = msgspec.json.decode(data, type=_Rows)
    fingerprints = valid_rows(file.vocabularies.items(), Fingerprint)
    vocabularies = {name: found for name, found in fingerprints if found.is_whole}
    headers = valid_rows(file.files.items(), _Header)
    files = {name: header for name, header in headers if header.vocabulary in vocabularies}
    if file.files and not files:
        raise ValueError("not one of its vocabularies is whole")
    return _File(
        version=file.version,
        files=files,
        vocabularies=vocabularies,
        verdicts=[verdict for _, verdict in valid_rows(enumerate(file.verdicts), _Verdict)],
    )
