"""Generated GGUF files: the user's cache, atomic writes, reading and copying metadata."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf

from specd.errors import StoreError
from specd.store import safe_files

_SPARE_BYTES = 64 << 20


def cache_directory() -> Path:
    """Return the bench's folder in the user's cache; XDG_CACHE_HOME moves it."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "specd" / "bench"


def cached_file(source: Path, what: str, write: Callable[[Path], object]) -> Path:
    """Return the file generated from `source`; `write` creates it on first use.

    what: part of the file name, for everything besides the source that decides the contents.
    """
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path = cache_directory() / f"{digest[:16]}-{what}.gguf"
    if not path.exists():
        write(path)
    return path


@contextmanager
def atomic_output(destination: Path, n_bytes: int) -> Iterator[Path]:
    """Yield a temporary file that replaces the destination, or is removed if the block fails.

    Raises StoreError where n_bytes do not fit on the disk or must not be written.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _check_free_space(destination, n_bytes)
        with safe_files.atomic_write(destination) as path:
            yield path
            path.chmod(0o644)
    except OSError as error:
        raise StoreError(f"{destination} cannot be written: {error.strerror}") from error


def _check_free_space(destination: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(destination.parent).free
    if free < n_bytes + _SPARE_BYTES:
        raise StoreError(
            f"{destination.parent} has {free / 1e9:.1f} GB free,"
            f" {destination.name} takes {n_bytes / 1e9:.1f} GB"
        )


def open_gguf(source: Path) -> Any:
    """Return a GGUFReader.  Raises StoreError for a file that is not a readable GGUF."""
    try:
        return gguf.GGUFReader(source)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise StoreError(f"{source}: cannot be read as GGUF: {error}") from error


def copy_metadata(writer: Any, reader: Any, keys: Collection[str]) -> None:
    """Copy the values of these keys to the writer, with their types, in the reader's order."""
    for key, field in reader.fields.items():
        if key in keys:
            kind, *element = field.types
            writer.add_key_value(key, field.contents(), kind, element[-1] if element else None)
