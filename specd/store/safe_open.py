"""Files read whole, where they are files: a pipe would be waited for, a device never ends."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class UnusableFile(OSError):
    """There is something, and it is no file, or far more than such a file ever has."""


def is_file(path: Path) -> bool:
    """Return whether a file is there; False for a name that no file can have."""
    try:
        return path.is_file()
    except OSError:  # a host may be longer than a file system's names, or a folder closed to us
        return False


@contextlib.contextmanager
def open_regular_file(path: Path) -> Iterator[BinaryIO]:
    """For reading.  Raises Unfit for what is no regular file, OSError."""
    # Opening a pipe without O_NONBLOCK waits for its other end; for files it changes nothing.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnusableFile(errno.EINVAL, "it is not a file", str(path))
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read(path: Path, max_bytes: int) -> bytes:
    """All of it.  Raises Unfit, also where there are more bytes than that, and OSError."""
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1) if size <= max_bytes else b""
    if max(size, len(data)) > max_bytes:
        raise UnusableFile(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
    return data
