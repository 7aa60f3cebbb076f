"""The user's cache of generated model files, each written atomically."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specd.errors import StoreError

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
        with _temporary_file(destination) as path:
            yield path
    except OSError as error:
        raise StoreError(f"{destination} cannot be written: {error.strerror}") from error


@contextmanager
def _temporary_file(destination: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(dir=destination.parent, suffix=".part")
    os.close(handle)
    path = Path(name)
    try:
        yield path
        path.chmod(0o644)  # mkstemp keeps others out
        path.replace(destination)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _check_free_space(destination: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(destination.parent).free
    if free < n_bytes + _SPARE_BYTES:
        raise StoreError(
            f"{destination.parent} has {free / 1e9:.1f} GB free,"
            f" {destination.name} takes {n_bytes / 1e9:.1f} GB"
        )
