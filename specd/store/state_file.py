"""A file with what specd has measured: written atomically, limited in size, renamed if damaged.

Failures never stop a request; the caller decides how to report them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from specd.store import safe_files
from specd.store.file_identity import Stamp, stamp_of
from specd.store.safe_files import atomic_write

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")


class StateFile(Generic[T]):
    """A state file whose contents are read again only if it has changed.

    path: None means that there is no file; then nothing is read or written.
    max_bytes: far above its normal size; a larger file counts as damaged.
    what: the contents, for the log, such as "the history of pairs".
    decode: returns the contents; raises ValueError if they are damaged.
    empty: the contents of a missing or damaged file.
    """

    def __init__(
        self,
        path: Path | None,
        max_bytes: int,
        what: str,
        decode: Callable[[bytes], T],
        empty: T,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._what = what
        self._decode = decode
        self._empty = empty
        #: The contents when the file was last read or written, and its stamp then.
        self._last: tuple[Stamp | None, T] = None, empty
        self._has_warned = False

    def read(self) -> T:
        """Return the contents.  Raises OSError.  A damaged file is renamed."""
        known_stamp, known = self._last
        if self.path is not None and (stamp := self._stamp(self.path)) != known_stamp:
            known = self._read(self.path)
            self._last = stamp, known
        return known

    def read_or_log(self) -> T:
        """Return the contents; the last known ones, with a warning, if it cannot be read."""
        try:
            return self.read()
        except OSError as error:
            self._warn_once("cannot read %s from %s: %s", error)
            return self._last[1]

    def _stamp(self, path: Path) -> Stamp | None:
        """Return a value that changes with the contents; None without a file.  Raises OSError."""
        try:
            return stamp_of(path)
        except FileNotFoundError:
            return None

    def _read(self, path: Path) -> T:
        try:
            return self._decode(safe_files.read(path, self._max_bytes))
        except FileNotFoundError:
            return self._empty
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            self._rename_damaged(path, str(error))
        except safe_files.UnusableFile as error:
            self._rename_damaged(path, str(error.strerror))
        return self._empty

    def _rename_damaged(self, path: Path, reason: str) -> None:
        renamed = path.with_name(f"{path.name}.damaged")
        try:
            path.replace(renamed)
        except FileNotFoundError:  # another specd was faster
            return
        except OSError as error:
            log.warning("%s is damaged (%s) and cannot be renamed: %s", path, reason, error)
            return
        log.warning("%s is damaged and was renamed to %s: %s", path, renamed.name, reason)

    def write(self, contents: object) -> None:
        """Replace the file atomically by the contents as JSON.  Raises OSError."""
        if self.path is None:
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(self.path) as part:
            part.write_bytes(msgspec.json.encode(contents))
        self._has_warned = False

    def replace_or_log(self, known: T, contents: object) -> None:
        """Write, and log if that fails; `known` is what `read` returns until the file changes."""
        self._last = self._last[0], known
        try:
            self.write(contents)
            if self.path is not None:
                self._last = self._stamp(self.path), known
        except OSError as error:
            self.log_write_error(error)

    def log_write_error(self, error: OSError) -> None:
        """Log that the file cannot be written."""
        self._warn_once("cannot write %s to %s: %s", error)

    def _warn_once(self, words: str, error: Exception) -> None:
        """Warn that the file cannot be used, once until it was written again."""
        level = logging.DEBUG if self._has_warned else logging.WARNING
        log.log(level, words, self._what, self.path, error)
        self._has_warned = True


def check_version(version: object, expected: object) -> None:
    """Raise ValueError if a file has another version."""
    if version != expected:
        raise ValueError(f"its version is {version}, not {expected}")


def valid_rows(rows: Iterable[tuple[K, msgspec.Raw]], kind: type[T]) -> Iterator[tuple[K, T]]:
    """Yield the rows that decode as `kind`; log how many do not.

    Raises ValueError if there are rows and none decodes.
    """
    n, n_valid, fault = 0, 0, ""
    for n, (key, row) in enumerate(rows, 1):  # noqa: B007 - n is used after the loop
        try:
            found = msgspec.json.decode(row, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            fault = str(error)
        else:
            n_valid += 1
            yield key, found
    if n and not n_valid:
        raise ValueError(fault)
    if n > n_valid:
        log.warning("ignored %d of %d saved entries, which are damaged: %s", n - n_valid, n, fault)
