"""Write files and links atomically, restore their earlier state, delete folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path


@dataclass(frozen=True)
class FileSnapshot:
    """The state of a file or a link at one time."""

    content: bytes = b""
    link: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0

    @classmethod
    def of(cls, path: Path) -> FileSnapshot | None:
        """Return the state of the path; None if it does not exist.  Raises OSError."""
        if path.is_symlink():
            return cls(link=str(path.readlink()))
        try:
            content, seen = path.read_bytes(), path.stat()
        except FileNotFoundError:
            return None
        return cls(content, "", seen.st_mode & 0o7777, seen.st_uid, seen.st_gid)

    def restore(self, path: Path) -> None:
        """Write the saved state back.  Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.link:
            put_link(path, self.link)
        else:
            write_whole(
                path, self.content, self.mode, lambda new: os.chown(new, self.uid, self.gid)
            )


def write_whole(
    path: Path, content: bytes, mode: int, own: Callable[[Path], None] | None = None
) -> None:
    """Write a file atomically, also across a power cut; it is private until it is complete.

    own: sets the owner of the new file.  Raises OSError.
    """
    staged = staging_path(path)
    staged.unlink(missing_ok=True)
    try:
        with staged.open("xb") as file:
            staged.chmod(0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if own is not None:
            own(staged)
        staged.chmod(mode)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def unused_path(path: Path) -> Path:
    """Return the first of `path.1`, `path.2` that does not exist."""
    names = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


def put_link(path: Path, target: str) -> None:
    """Create a link in place of any existing file.  Raises OSError."""
    staged = staging_path(path)
    staged.unlink(missing_ok=True)
    staged.symlink_to(target)
    staged.replace(path)


def staging_path(path: Path) -> Path:
    """Return the path of the temporary file.

    It is always the same, so leftovers of a killed run are replaced.  Only one plan runs at a time.
    """
    return path.with_name(f".{path.name}.new")


def delete_tree(path: Path) -> None:
    """Delete a folder, a file or a link, if it exists.  Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
