"""The manifests below a folder: host/namespace/model/tag, listed again only where that may differ.

A request asks for them, so an unchanged tree costs no more than a look at each folder and file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.store import name as names
from specd.store.name import Name

_DEPTH: Final = 4
#: A folder that changed less long ago than this may change again without a new time in it.
_TICK_NS: Final = 2 * 10**9
#: A stamp looks at all manifests no more often than this.
RESCAN_INTERVAL_S: Final = 1.0

_Identity = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class _Listing:
    """folders: as they were.  upper: of these, all but the models' own.

    settled: whether a change since then would be seen in them.
    """

    files: tuple[tuple[Name, Path], ...]
    folders: dict[str, _Identity]
    upper: dict[str, _Identity]
    settled: bool


@dataclass(frozen=True, slots=True)
class _CachedListing:
    stamp: object
    listing: _Listing
    until: float


class ManifestTree:
    """unix_ns: the time of the day.  clock: seconds.  Safe to call from several threads."""

    def __init__(
        self,
        root: Path,
        *,
        unix_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._unix_ns = unix_ns
        self._clock = clock
        self._stamped: _CachedListing | None = None
        self._listing: _Listing | None = None

    def files(self) -> tuple[tuple[Name, Path], ...]:
        """By path; what has no name that a model can have is left out."""
        known = self._listing
        if known is None or not known.settled or not _is_unchanged(known.folders):
            known = self._listing = self._list(known)
        return known.files

    def stamp(self) -> object:
        """Equal as long as no manifest was added, removed or written.

        Asked at every request: of models that were there, a new tag, or a manifest that is written
        in place, is seen a second later at most.
        """
        now, known, last = self._clock(), self._listing, self._stamped
        if (
            last is not None
            and known is last.listing
            and known.settled
            and now < last.until
            and _is_unchanged(known.upper)
        ):
            return last.stamp
        files = self.files()
        assert self._listing is not None
        stamp = files, tuple(identity(path) for _, path in files)
        self._stamped = _CachedListing(stamp, self._listing, now + RESCAN_INTERVAL_S)
        return stamp

    def _list(self, before: _Listing | None) -> _Listing:
        began_ns = self._unix_ns()
        folders: dict[str, _Identity] = {}
        found = []
        for path in _list_files(str(self._root), _DEPTH, folders):
            manifest = Path(path)
            name = names.from_parts(manifest.relative_to(self._root).parts)
            if name is not None:
                found.append((name, manifest))
        files = tuple(sorted(found, key=lambda entry: entry[1].parts))
        if before is not None and before.files == files:
            files = before.files  # so that stamps of one tree are quickly compared
        newest = max((seen[2] for seen in folders.values() if seen is not None), default=0)
        depth = str(self._root).count(os.sep) + _DEPTH - 1
        upper = {path: seen for path, seen in folders.items() if path.count(os.sep) < depth}
        return _Listing(files, folders, upper, settled=newest < began_ns - _TICK_NS)


def _list_files(folder: str, depth: int, folders: dict[str, _Identity]) -> Iterator[str]:
    """The files `depth` levels down; what is closed to us has none."""
    folders[folder] = identity(folder)
    try:
        with os.scandir(folder) as entries:
            inside = [(entry.path, _is(entry, folder=depth > 1)) for entry in entries]
    except OSError:
        return
    for path, is_wanted in inside:
        if is_wanted and depth == 1:
            yield path
        elif is_wanted:
            yield from _list_files(path, depth - 1, folders)


def _is(entry: os.DirEntry[str], *, folder: bool) -> bool:
    try:
        return entry.is_dir() if folder else entry.is_file()
    except OSError:
        return False


def _is_unchanged(folders: dict[str, _Identity]) -> bool:
    return all(identity(path) == seen for path, seen in folders.items())


def identity(path: str | Path) -> _Identity:
    """Return what differs once that file was replaced or written; None where there is none."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - a path's own method is slower, and this is asked often
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
