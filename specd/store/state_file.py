"""A file with what specd has measured: written atomically, limited in size, renamed if damaged.

Failures never stop a request; the caller decides how to report them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from specd.store import safe_open
from specd.store.atomic_files import atomic_write

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")
Stamp = tuple[int, int, int]


class StateFile:
    """A state file.

    max_bytes: far above its normal size; a larger file counts as damaged.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._complained = False

    def stamp(self) -> Stamp | None:
        """Return a value that changes with the contents; None without a file.  Raises OSError."""
        try:
            seen = self.path.stat()
        except FileNotFoundError:
            return None
        return seen.st_ino, seen.st_size, seen.st_mtime_ns

    def read(self, decode: Callable[[bytes], T]) -> T | None:
        """Return the decoded contents; None if the file is missing or damaged.  Raises OSError.

        decode: raises ValueError if the contents are damaged; the file is then renamed.
        """
        try:
            return decode(safe_open.read(self.path, self._max_bytes))
        except FileNotFoundError:
            return None
        except (ValueError, safe_open.UnusableFile) as error:
            self._set_aside(error)
            return None

    def _set_aside(self, damage: ValueError | safe_open.UnusableFile) -> None:
        reason = damage.strerror if isinstance(damage, safe_open.UnusableFile) else damage
        aside = self.path.with_name(f"{self.path.name}.damaged")
        try:
            self.path.replace(aside)
        except FileNotFoundError:  # another specd was faster
            return
        except OSError as error:
            log.warning("%s is damaged (%s) and cannot be renamed: %s", self.path, reason, error)
            return
        log.warning("%s is damaged and was renamed to %s: %s", self.path, aside.name, reason)

    def write(self, data: bytes) -> None:
        """Replace the file atomically.  Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(self.path) as part:
            part.write_bytes(data)
        self._complained = False

    def warn_once(self, words: str, error: Exception) -> None:
        """Warn that the file cannot be used, once until it was written again.

        words: a log format such as "cannot write %s: %s", for the path and the error.
        """
        level = logging.DEBUG if self._complained else logging.WARNING
        log.log(level, words, self.path, error)
        self._complained = True


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
