"""What specd knows of the vocabularies on this machine, and which of them fit: one file, kept.

A blob never changes, so its header is read once, ever.  Only where two fingerprints leave it open,
or a difference is to be named, are both files read again; that verdict is kept as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from specd.errors import StoreError
from specd.pairs.compatibility import difference
from specd.pairs.fingerprints import Fingerprint, fits
from specd.pairs.vocabulary import Vocabulary, vocabulary_of
from specd.store.facts import facts_of
from specd.store.file_cache import FileCache
from specd.store.gguf import read_header
from specd.store.identity import identity_of
from specd.store.state_file import StateFile

log = logging.getLogger(__name__)

#: Its name in the state directory.
VOCABULARIES_FILE: Final = "vocabularies.json"
#: More files, or verdicts, than this, and those that were learned first are dropped.
MAX_FILES: Final = 2000
MAX_VERDICTS: Final = 4000
#: Far above what so many take, of which most share a vocabulary: more is damage.
MAX_BYTES: Final = 32 * 2**20
_VERSION: Final = 1
#: Of the time that passes, writing takes no more than one part in so many.
_WRITING_SHARE: Final = 20.0

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_K = TypeVar("_K")
_V = TypeVar("_V")


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether a file can draft.  vocabulary: its fingerprint's name."""

    architecture: str
    n_active_parameters: _Count
    read_bytes: _Count
    has_pooling: bool
    vocabulary: str


class _Verdict(msgspec.Struct, frozen=True, array_like=True):
    """difference: "" where there is none."""

    target: str
    drafter: str
    difference: str


class _File(msgspec.Struct, frozen=True):
    version: int
    files: dict[str, Traits]
    vocabularies: dict[str, Fingerprint]
    verdicts: list[_Verdict]


class Vocabularies:
    """path None keeps everything in memory alone.  clock: seconds, of any beginning.

    Methods read files.  Safe to call from several threads.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = StateFile(path, MAX_BYTES) if path is not None else None
        self._clock = clock
        self._known = self._read_or_complain()
        self._verdicts = {(v.target, v.drafter): v.difference for v in self._known.verdicts}
        self._seen: FileCache[Traits] = FileCache(self._look)
        self._lock = threading.Lock()  # of writing
        self._unsaved = False
        self._next_save = clock()

    def traits(self, weights: Path) -> Traits:
        """Raises StoreError."""
        return self._seen.get(weights)

    def fits(self, target: Path, drafter: Path) -> bool:
        """Whether the drafter speaks the target's vocabulary; raises StoreError."""
        ours, theirs = self.traits(target).vocabulary, self.traits(drafter).vocabulary
        if ours == theirs:
            return True
        known = self._verdicts.get((ours, theirs))
        if known is not None:
            return not known
        fingerprints = self._known.vocabularies
        verdict = fits(fingerprints[ours], fingerprints[theirs])
        return not self.difference(target, drafter) if verdict is None else verdict

    def difference(self, target: Path, drafter: Path) -> str:
        """Why the two do not fit, as the end of a sentence; "" when they do.  StoreError."""
        key = self.traits(target).vocabulary, self.traits(drafter).vocabulary
        if key[0] == key[1]:
            return ""
        if key not in self._verdicts:
            found = difference(_read(target), _read(drafter)) or ""
            self._verdicts[key] = found
            self._unsaved = True
        return self._verdicts[key]

    def _look(self, weights: Path) -> Traits:
        try:
            identity = identity_of(weights)
        except OSError as error:
            raise StoreError(f"cannot read {weights}: {error.strerror or error}") from error
        if identity not in self._known.files:
            header = read_header(weights)
            facts, fingerprint = facts_of(header), Fingerprint.of(header)
            self._known.vocabularies.setdefault(fingerprint.name, fingerprint)
            self._known.files[identity] = Traits(
                architecture=facts.architecture,
                n_active_parameters=facts.n_active_parameters,
                read_bytes=facts.read_bytes,
                has_pooling=facts.has_pooling,
                vocabulary=fingerprint.name,
            )
            self._unsaved = True
        return self._known.files[identity]

    # ----------------------------------------------------------------------- the file

    def save(self) -> None:
        """Write what is new, unless that was done a moment ago: then at a later call."""
        if self._file is None or not self._unsaved or self._clock() < self._next_save:
            return
        if not self._lock.acquire(blocking=False):
            return  # another thread is at it
        try:
            began, self._unsaved = self._clock(), False
            self._file.write(msgspec.json.encode(self._merged()))
            ended = self._clock()
            self._next_save = ended + _WRITING_SHARE * (ended - began)
        except OSError as error:
            self._complain("cannot keep what was learned of vocabularies in %s: %s", error)
        finally:
            self._lock.release()

    def _merged(self) -> _File:
        """With what another specd has written meanwhile."""
        written = self._read_or_complain()
        files = _newest({**written.files, **self._known.files}, MAX_FILES)
        all_known = {**written.vocabularies, **self._known.vocabularies}
        names = {traits.vocabulary for traits in files.values()}
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

    def _read_or_complain(self) -> _File:
        known = None
        if self._file is not None:
            try:
                known = self._file.read(_decode)
            except OSError as error:
                self._complain("cannot read what is known of vocabularies in %s: %s", error)
        return known or _File(_VERSION, {}, {}, [])

    def _complain(self, words: str, error: Exception) -> None:
        assert self._file is not None
        log.warning(words, self._file.path, error)


def _read(path: Path) -> Vocabulary:
    return vocabulary_of(read_header(path))


def _newest(known: dict[_K, _V], n: int) -> dict[_K, _V]:
    """The last n of them."""
    return dict(islice(known.items(), max(len(known) - n, 0), None))


def _decode(data: bytes) -> _File:
    """ValueError for bytes that are no such file of this version."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if file.version != _VERSION:
        raise ValueError(f"its version is {file.version}, not {_VERSION}")
    if not all(fingerprint.is_whole for fingerprint in file.vocabularies.values()):
        raise ValueError("a fingerprint in it is not whole")
    if not file.vocabularies.keys() >= {traits.vocabulary for traits in file.files.values()}:
        raise ValueError("a vocabulary is missing in it")
    return file
