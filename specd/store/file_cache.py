"""A cache of values read from files, valid as long as the files do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from specd.errors import StoreError

T = TypeVar("T")

_Identity = tuple[int, int, int]


class FileCache(Generic[T]):
    """Cache that reads a file again when its inode, size or mtime changes.

    A StoreError is cached like a value, so that a damaged file is read once.
    """

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._known: dict[Path, tuple[_Identity, T | StoreError]] = {}

    def get(self, path: Path) -> T:
        """Return the value read from `path`.  Raises StoreError, also if the file is missing."""
        try:
            stat = path.stat()
        except OSError as error:
            self._known.pop(path, None)
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
        identity = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        known = self._known.get(path)
        if known is None or known[0] != identity:
            known = identity, self._read_fresh(path)
            self._known[path] = known
        if isinstance(known[1], StoreError):
            # A new exception each time, because raising adds the caller's frames to it.
            raise StoreError(str(known[1]))
        return known[1]

    def _read_fresh(self, path: Path) -> T | StoreError:
        try:
            return self._read(path)
        except StoreError as error:
            return StoreError(str(error))
