"""What was learned from files, for as long as they do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from specd.errors import StoreError

T = TypeVar("T")

_Identity = tuple[int, int, int]


class FileCache(Generic[T]):
    """Reads a file once per content: device-free identity is inode, size and mtime.

    A StoreError is remembered like a value, so that a damaged file is not read again and again.
    """

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._known: dict[Path, tuple[_Identity, T | StoreError]] = {}

    def get(self, path: Path) -> T:
        """Raises StoreError, for a missing file as well."""
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
            # A new one each time: a raised exception collects its callers' frames.
            raise StoreError(str(known[1]))
        return known[1]

    def _read_fresh(self, path: Path) -> T | StoreError:
        try:
            return self._read(path)
        except StoreError as error:
            return StoreError(str(error))
