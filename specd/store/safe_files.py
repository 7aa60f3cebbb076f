"""Safe reads and atomic writes of files, and locks that the kernel releases with their process.

Only regular files are read: a pipe would block, and a device never ends.  The locks are `flock` on
folders and files that exist anyway, so no lock file is left behind.  They apply to every specd on
the machine; Ollama does not use them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from specd.errors import StoreError

log = logging.getLogger(__name__)

#: O_NONBLOCK: opening a pipe that lies where a file should be must not block.
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK
#: How long to wait for another process's lock.
LOCK_TIMEOUT_S: Final = 10.0
#: An unfinished file of this age has no writer any more.
_ABANDONED_S: Final = 3600.0
#: The lock is polled because a blocking flock has no timeout.
_LOCK_POLL_S: Final = 0.02


@contextlib.contextmanager
def to_store_errors(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError such as "cannot <what>: No space left on device"."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {what}: {error.strerror or error}") from error


# --------------------------------------------------------------------------- reads


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
    descriptor = os.open(path, _OPEN_FLAGS)
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


# --------------------------------------------------------------------------- locks


@contextlib.contextmanager
def exclusive_lock(path: Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Lock a folder or file against all other threads and processes.  Not reentrant.

    Raises BlockingIOError if the lock is not free within `lock_timeout_s`.
    """
    opened = os.open(path, _OPEN_FLAGS)
    try:
        _lock(opened, fcntl.LOCK_EX, path, lock_timeout_s)
        yield
    finally:
        os.close(opened)


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Protect the file from `remove_if_unlocked`.  Raises FileNotFoundError if it is gone."""
    opened = os.open(path, _OPEN_FLAGS)
    try:
        _lock(opened, fcntl.LOCK_SH, path, LOCK_TIMEOUT_S)
        if os.fstat(opened).st_nlink == 0:  # removed after it was opened, before it was locked
            raise FileNotFoundError(2, "No such file or directory", str(path))
        yield
    finally:
        os.close(opened)


def _lock(opened: int, how: int, path: Path, lock_timeout_s: float) -> None:
    until, waiting = time.monotonic() + lock_timeout_s, False
    while True:
        try:
            return fcntl.flock(opened, how | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                reason = "another specd is writing here"
                raise BlockingIOError(errno.EAGAIN, reason) from error
        if not waiting:
            log.warning("waiting for %s: another specd is writing here", path)
            waiting = True
        time.sleep(_LOCK_POLL_S)


def remove_if_unlocked(path: Path) -> bool:
    """Remove the file unless another process holds a lock on it; return whether it is gone.

    A file that has just replaced it stays: it may be locked, and is new.
    """
    try:
        opened = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(opened), path.stat()):
            return False
        path.unlink()
        return True
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(opened)


# --------------------------------------------------------------------------- writes


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file with mode 0600; it replaces `path` when the block succeeds.

    A reader sees either the old file or the new one.
    """
    remove_leftovers(path.parent, f"{glob.escape(f'.{path.name}.')}*.part")
    opened, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(opened)
    part = Path(name)
    try:
        yield part
        move(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove temporary files of writers that were killed."""
    for part in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another writer has just finished, or not our file
            # A time in the future means that the file was written while the clock was wrong.
            if abs(time.time() - part.stat().st_mtime) > _ABANDONED_S:
                part.unlink()


def move(source: Path, target: Path) -> None:
    """Rename a finished file over `target`, so that a power cut leaves it whole or absent."""
    sync(source)
    source.replace(target)
    sync(target.parent)


def make_folders(folder: Path) -> None:
    """Make `folder` and its parents, and fsync the new entries."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)


def sync(path: Path) -> None:
    """Fsync a file's bytes or a folder's entries."""
    opened = os.open(path, _OPEN_FLAGS)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
