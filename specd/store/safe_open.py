"""Reading of regular files only: a pipe would block, and a device never ends."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class UnusableFile(OSError):
    """A path that is not a regular file, or a file above its size limit."""


def is_file(path: Path) -> bool:
    """Return whether the file exists; False if its name is invalid or its folder unreadable."""
    try:
        return path.is_file()
    except OSError:  # for example a host longer than the file system's limit
        return False


@contextlib.contextmanager
def open_regular_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading.  Raises UnusableFile if it is not a regular file, and OSError."""
    # Without O_NONBLOCK, opening a pipe waits for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnusableFile(errno.EINVAL, "it is not a file", str(path))
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read(path: Path, max_bytes: int) -> bytes:
    """Read a whole file.  Raises UnusableFile, also above `max_bytes`, and OSError."""
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1) if size <= max_bytes else b""
    if max(size, len(data)) > max_bytes:
        raise UnusableFile(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
    return data
