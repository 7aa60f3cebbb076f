"""Files that are whole or absent, whatever happens in between, and locks that die with their owner.

Locks are flock's on folders and files that exist anyway, so none is ever left behind; they bind
every specd on the machine.  Ollama takes none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from specd.errors import StoreError

log = logging.getLogger(__name__)

#: A pipe in a file's place is not waited for.
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK
#: How long a lock of another process is waited for.
LOCK_TIMEOUT_S: Final = 10.0
#: A file in the making that is so old is nobody's any more.
_ABANDONED_S: Final = 3600.0
#: flock itself would wait without a bound.
_LOCK_POLL_S: Final = 0.02


@contextlib.contextmanager
def to_store_errors(what: str) -> Iterator[None]:
    """Turn the system's errors into a StoreError: "cannot <what>: No space left on device"."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {what}: {error.strerror or error}") from error


@contextlib.contextmanager
def exclusive_lock(path: Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Alone with a folder or a file, among all threads and processes.  Not reentrant.

    Raises BlockingIOError where it is somebody else's for so long.
    """
    opened = os.open(path, _OPEN_FLAGS)
    try:
        _lock(opened, fcntl.LOCK_EX, path, lock_timeout_s)
        yield
    finally:
        os.close(opened)


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """While this lasts `remove_unless_held` spares the file; FileNotFoundError where it is gone."""
    opened = os.open(path, _OPEN_FLAGS)
    try:
        _lock(opened, fcntl.LOCK_SH, path, LOCK_TIMEOUT_S)
        if os.fstat(opened).st_nlink == 0:  # removed between the two lines above
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
                said = "another specd is changing the store"
                raise BlockingIOError(errno.EAGAIN, said) from error
        if not waiting:
            log.warning("waiting for %s: another specd is changing the store", path)
            waiting = True
        time.sleep(_LOCK_POLL_S)


def remove_if_unlocked(path: Path) -> bool:
    """Whether the file is gone now."""
    try:
        opened = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(opened)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A new file beside `path`, its owner's alone; it takes that place if all goes well.

    Whoever reads sees the old file or the new one.
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
    """Remove what writers left there that were killed in the middle."""
    for part in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another writer has just finished; not ours
            # One of a time that has yet to come was written before the clock was set right.
            if abs(time.time() - part.stat().st_mtime) > _ABANDONED_S:
                part.unlink()


def move(source: Path, target: Path) -> None:
    """Rename a finished file over `target`: after a power cut it is there whole, or not at all."""
    sync(source)
    source.replace(target)
    sync(target.parent)


def make_folders(folder: Path) -> None:
    """With those above it, so that they outlast a power cut like what is moved into them."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, outlast a power cut."""
    opened = os.open(path, _OPEN_FLAGS)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
