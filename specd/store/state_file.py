"""A file of what specd learned: whole or absent, bounded, and set aside where it is damaged.

Nobody is refused anything for its sake: what cannot be read or written is for the owner to say.
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
    """max_bytes: far above what it should ever take; more is damage."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._complained = False

    def stamp(self) -> Stamp | None:
        """Differs whenever the content may; None where there is no file.  OSError."""
        try:
            seen = self.path.stat()
        except FileNotFoundError:
            return None
        return seen.st_ino, seen.st_size, seen.st_mtime_ns

    def read(self, decode: Callable[[bytes], T]) -> T | None:
        """None where there is no file, or one that `decode` refuses with ValueError.  OSError."""
        try:
            return decode(safe_open.read(self.path, self._max_bytes))
        except FileNotFoundError:
            return None
        except (ValueError, safe_open.UnusableFile) as error:
            self._set_aside(error)
            return None

    def _set_aside(self, damage: ValueError | safe_open.UnusableFile) -> None:
        said = damage.strerror if isinstance(damage, safe_open.UnusableFile) else damage
        aside = self.path.with_name(f"{self.path.name}.damaged")
        try:
            self.path.replace(aside)
        except FileNotFoundError:  # another specd was faster
            return
        except OSError as error:
            log.warning("%s is damaged, and cannot be set aside: %s: %s", self.path, said, error)
            return
        log.warning("%s is damaged and was set aside: %s", self.path, said)

    def write(self, data: bytes) -> None:
        """At once or not at all: whoever reads sees the old file or the new one.  OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(self.path) as part:
            part.write_bytes(data)
        self._complained = False

    def warn_once(self, words: str, error: Exception) -> None:
        """Say why it cannot be used, "... in %s: %s": once until it can be written again."""
        level = logging.DEBUG if self._complained else logging.WARNING
        log.log(level, words, self.path, error)
        self._complained = True


def valid_rows(rows: Iterable[tuple[K, msgspec.Raw]], kind: type[T]) -> Iterator[tuple[K, T]]:
    """Each row that is a `kind`: one that is damaged takes no other along.

    ValueError where not a single one is.
    """
    n, n_sound, fault = 0, 0, ""
    for n, (key, row) in enumerate(rows, 1):  # noqa: B007 - how many there are
        try:
            found = msgspec.json.decode(row, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            fault = str(error)
        else:
            n_sound += 1
            yield key, found
    if n and not n_sound:
        raise ValueError(fault)
    if n > n_sound:
        log.warning("%d of %d things that were learned are damaged: %s", n - n_sound, n, fault)
