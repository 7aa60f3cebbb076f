"""The identity under which specd saves what it measured about a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from specd.store.blobs import digest_of


def file_identity(weights: Path) -> str:
    """Return a blob's digest, or a hash of another file's path, size and mtime.

    Raises OSError.
    """
    stat = weights.stat()
    if (digest := digest_of(weights)) is not None:
        return f"sha256:{digest}"
    words = f"{stat.st_size} {stat.st_mtime_ns} ".encode() + os.fsencode(weights.absolute())
    return f"file:{hashlib.sha256(words).hexdigest()}"


def file_identities(paths: Iterable[str | Path]) -> tuple[str, ...]:
    return tuple(file_identity(Path(path)) for path in paths)
