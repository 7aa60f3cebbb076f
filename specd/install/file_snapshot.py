"""Files and links: written whole or not at all, kept, and put back as they were."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path


@dataclass(frozen=True)
class FileSnapshot:
    """A file, or a link, as it was."""

    content: bytes = b""
    link: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0

    @classmethod
    def of(cls, path: Path) -> FileSnapshot | None:
        """None where nothing is.  Raises OSError."""
        if path.is_symlink():
            return cls(link=str(path.readlink()))
        try:
            content, seen = path.read_bytes(), path.stat()
        except FileNotFoundError:
            return None
        return cls(content, "", seen.st_mode & 0o7777, seen.st_uid, seen.st_gid)

    def restore(self, path: Path) -> None:
        """Raises OSError."""
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
    """Whole or not at all, after a power cut too; nobody else reads it before it is all there.

    own: gives the new file to whom it belongs.  Raises OSError.
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
    """The first of `path.1`, `path.2` that nobody has."""
    names = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


def put_link(path: Path, target: str) -> None:
    """In place of what is there.  Raises OSError."""
    staged = staging_path(path)
    staged.unlink(missing_ok=True)
    staged.symlink_to(target)
    staged.replace(path)


def staging_path(path: Path) -> Path:
    """Always the same, as one plan at a time is carried out: what a killed one left is replaced."""
    return path.with_name(f".{path.name}.new")
