"""A file of what specd learned: whole or absent, bounded, and set aside where it is damaged.

Nobody is refused anything for its sake: what cannot be read or written is for the owner to say.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from specd.store.durable import replacing

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")
Stamp = tuple[int, int, int]

_ABANDONED_S: Final = 3600.0


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
            with self.path.open("rb") as file:
                data = file.read(self._max_bytes + 1)
        except FileNotFoundError:
            return None
        try:
            return decode(self._bounded(data))
        except ValueError as error:
            self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
            log.warning("%s is damaged and was set aside: %s", self.path, error)
            return None

    def _bounded(self, data: bytes) -> bytes:
        if len(data) > self._max_bytes:
            raise ValueError(f"more than {self._max_bytes} bytes")
        return data

    def write(self, data: bytes) -> None:
        """At once or not at all: whoever reads sees the old file or the new one.  OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()
        with replacing(self.path) as part:
            part.write_bytes(data)
        self._complained = False

    def complain(self, words: str, error: Exception) -> None:
        """Say why it cannot be used, "... in %s: %s": once until it can be written again."""
        level = logging.DEBUG if self._complained else logging.WARNING
        log.log(level, words, self.path, error)
        self._complained = True

    def _sweep(self) -> None:
        """Remove what writers left that were killed in the middle."""
        for part in self.path.parent.glob(f".{self.path.name}.*.part"):
            with contextlib.suppress(FileNotFoundError):  # another writer has just finished
                if time.time() - part.stat().st_mtime > _ABANDONED_S:
                    part.unlink()


def sound(rows: Iterable[tuple[K, msgspec.Raw]], kind: type[T]) -> Iterator[tuple[K, T]]:
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
