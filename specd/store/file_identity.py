"""Identities of files, and a cache of values that were read from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from specd.errors import StoreError
from specd.store.blobs import digest_of
from specd.store.safe_files import to_store_errors

T = TypeVar("T")
Stamp = tuple[int, int, int]


def stamp_of(path: str | Path) -> Stamp:
    """Return a value that changes when the file is replaced or written.  Raises OSError."""
    seen = os.stat(path)  # noqa: PTH116 - Path.stat is slower, and this is called often
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def stamp_if_readable(path: str | Path) -> Stamp | None:
    """Return `stamp_of` the file; None if it is missing or may not be read."""
    try:
        return stamp_of(path)
    except OSError:
        return None


def file_identity(weights: Path) -> str:
    """Return a blob's digest, or a hash of another file's path, size and mtime.

    Measurements of a file are saved under it.  Raises OSError.
    """
    _, size, mtime_ns = stamp_of(weights)
    if (digest := digest_of(weights)) is not None:
        return f"sha256:{digest}"
    words = f"{size} {mtime_ns} ".encode() + os.fsencode(weights.absolute())
    return f"file:{hashlib.sha256(words).hexdigest()}"


def file_identities(paths: Iterable[str | Path]) -> tuple[str, ...]:
    return tuple(file_identity(Path(path)) for path in paths)


class FileCache(Generic[T]):
    """Cache that reads a file again when its inode, size or mtime changes.

    A StoreError is cached like a value, so that a damaged file is read once.
    """

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._known: dict[Path, tuple[Stamp, T | StoreError]] = {}

    def get(self, path: Path) -> T:
        """Return the value read from `path`.  Raises StoreError, also if the file is missing."""
        try:
            with to_store_errors(f"read {path}"):
                stamp = stamp_of(path)
        except StoreError:
            self._known.pop(path, None)
            raise
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = stamp, self._read_fresh(path)
        if isinstance(known[1], StoreError):
            # A new exception each time, because raising adds the caller's frames to it.
            raise StoreError(str(known[1]))
        return known[1]

    def _read_fresh(self, path: Path) -> T | StoreError:
        try:
            return self._read(path)
        except StoreError as error:
            return StoreError(str(error))
