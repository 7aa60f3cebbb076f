"""Cached listing of the manifests below a folder, as host/namespace/model/tag.

Every request needs the listing, so an unchanged tree costs only one `stat` per folder and file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.store import name as names
from specd.store.file_identity import Stamp, stamp_if_readable
from specd.store.name import Name

_DEPTH: Final = 4
#: A folder changed more recently than this may change again without a new mtime.
_TICK_NS: Final = 2 * 10**9
#: `stamp` checks all manifests at most this often.
RESCAN_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Listing:
    """One listing of the tree.

    folders: stamp of each folder at that time.  upper: the same without the models' folders.
    settled: whether any later change would change one of these stamps.
    """

    files: tuple[tuple[Name, Path], ...]
    folders: dict[str, Stamp | None]
    upper: dict[str, Stamp | None]
    settled: bool


@dataclass(frozen=True, slots=True)
class _CachedListing:
    stamp: object
    listing: _Listing
    until: float


class ManifestTree:
    """Cached view of the manifests below `root`.  Safe to call from several threads.

    unix_ns: clock of the file times.  clock: monotonic seconds.
    """

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
        """Return all manifests, sorted by path; skip paths that are no valid model name."""
        known = self._listing
        if known is None or not known.settled or not _is_unchanged(known.folders):
            known = self._listing = self._list(known)
        return known.files

    def stamp(self) -> object:
        """Return a value that changes when a manifest is added, removed or written.

        Every request asks for it.  A new tag of a known model, or a manifest written in place, may
        take up to RESCAN_INTERVAL_S to show.
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
        stamp = files, tuple(stamp_if_readable(path) for _, path in files)
        self._stamped = _CachedListing(stamp, self._listing, now + RESCAN_INTERVAL_S)
        return stamp

    def _list(self, before: _Listing | None) -> _Listing:
        began_ns = self._unix_ns()
        folders: dict[str, Stamp | None] = {}
        found = []
        for path in _list_files(str(self._root), _DEPTH, folders):
            manifest = Path(path)
            name = names.from_parts(manifest.relative_to(self._root).parts)
            if name is not None:
                found.append((name, manifest))
        files = tuple(sorted(found, key=lambda entry: entry[1].parts))
        if before is not None and before.files == files:
            files = before.files  # the same object makes comparing stamps cheap
        newest = max((seen[2] for seen in folders.values() if seen is not None), default=0)
        depth = str(self._root).count(os.sep) + _DEPTH - 1
        upper = {path: seen for path, seen in folders.items() if path.count(os.sep) < depth}
        return _Listing(files, folders, upper, settled=newest < began_ns - _TICK_NS)


def _list_files(folder: str, depth: int, folders: dict[str, Stamp | None]) -> Iterator[str]:
    """Yield the files `depth` levels down, and record every folder in `folders`.

    Skips unreadable folders.
    """
    folders[folder] = stamp_if_readable(folder)
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


def _is_unchanged(folders: dict[str, Stamp | None]) -> bool:
    return all(stamp_if_readable(path) == seen for path, seen in folders.items())
