"""Removal of unused files from a store at start: Ollama's rule, except for paused downloads."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from specd.errors import StoreError
from specd.store.manifest import manifest_files, referenced_digests
from specd.store.safe_files import remove_if_unlocked

log = logging.getLogger(__name__)

#: A younger file may belong to an unfinished model, here or in a running Ollama.
GRACE_S: Final = 3600.0
#: An interrupted download is resumed after a restart; Ollama starts again.
PAUSED_S: Final = 7 * 24 * 3600.0
_PAUSED: Final = re.compile(r"(sha256-[0-9a-f]{64}-partial)(?:-[0-9]+)?")
_BLOB: Final = re.compile(r"sha256-[0-9a-f]{64}")
_OLD_BLOB: Final = re.compile(r"sha256:[0-9a-fA-F]{64}")


def prune(blobs: Path, manifests: Path, folders: Iterable[Path]) -> None:
    """Remove blobs that no manifest names, files that are no blobs, and empty manifest folders.

    Spares files younger than GRACE_S, and resumable downloads younger than PAUSED_S.  Removes
    nothing while a manifest is damaged.  folders: where a crash may leave unfinished manifests.
    """
    if time.time() < _installed_at():
        log.warning("the store is not pruned: the clock is wrong (%s); set it", time.ctime())
        return
    try:
        used = referenced_digests(manifest_files(manifests))
    except StoreError as error:
        log.warning("the store is not pruned: %s", error)
        return
    names = {digest.replace(":", "-") for digest in used}
    n_removed = sum(_remove_if_unused(path, names) for path in sorted(blobs.iterdir()))
    for folder in folders:
        n_removed += sum(_remove_if_unused(left, set()) for left in sorted(folder.glob(".specd-*")))
    for folder in sorted(manifests.rglob("*"), reverse=True):  # the deepest first
        with contextlib.suppress(OSError):  # a file, or not empty
            folder.rmdir()
    if n_removed:
        log.info("removed %d unused files from %s", n_removed, blobs)


def _installed_at() -> float:
    """Return a time that has certainly passed; a machine's clock may start years too early."""
    return Path(__file__).stat().st_mtime


def _remove_if_unused(path: Path, used: set[str]) -> bool:
    """Remove a file if it is unused and old enough; return whether it was removed."""
    try:
        path = _current_blob_path(path)
        if not path.is_file() or (_BLOB.fullmatch(path.name) and path.name in used):
            return False
        age_s = time.time() - path.stat().st_mtime
        if age_s < -GRACE_S:  # written while the clock was wrong: its age starts now
            os.utime(path)
        if age_s < _grace_s(path):
            return False
        return remove_if_unlocked(path)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror or error)
        return False


def _grace_s(path: Path) -> float:
    """Return the age at which an unused file is removed, in seconds.

    An upload has no state files, so it cannot be resumed.
    """
    part = _PAUSED.fullmatch(path.name)
    if part is not None and any(path.parent.glob(f"{part[1]}-*")):
        return PAUSED_S
    return GRACE_S


def _current_blob_path(path: Path) -> Path:
    """Rename a blob from Ollama's old form `sha256:x` to `sha256-x`; return its path."""
    if not _OLD_BLOB.fullmatch(path.name):
        return path
    return path.rename(path.with_name(path.name.replace(":", "-").lower()))
