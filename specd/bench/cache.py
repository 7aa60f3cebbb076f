"""Files that can be made again: where they lie, and how they get there whole or not at all."""

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
    # No setting of specd: the desktop's own convention for files that can be made again.
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "specd" / "bench"


def cached_file(source: Path, what: str, write: Callable[[Path], object]) -> Path:
    """The file made of `source`, written on first use.

    what: all that decides its contents but the source, in words for a file name.
    """
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path = cache_directory() / f"{digest[:16]}-{what}.gguf"
    if not path.exists():
        write(path)
    return path


@contextmanager
def atomic_output(destination: Path, n_bytes: int) -> Iterator[Path]:
    """A file beside the destination that becomes it, or vanishes if the block fails.

    StoreError: no room for n_bytes, or no right to write them.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _check_room(destination, n_bytes)
        with _whole_or_not_at_all(destination) as path:
            yield path
    except OSError as error:
        raise StoreError(f"{destination} cannot be written: {error.strerror}") from error


@contextmanager
def _whole_or_not_at_all(destination: Path) -> Iterator[Path]:
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


def _check_room(destination: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(destination.parent).free
    if free < n_bytes + _SPARE_BYTES:
        raise StoreError(
            f"{destination.parent} has {free / 1e9:.1f} GB free,"
            f" {destination.name} takes {n_bytes / 1e9:.1f} GB"
        )
