"""Write access to Ollama's store: blobs, manifests, copies and deletions.

Every write is atomic, even if the process is killed or the disk is full.  An unfinished blob is in
`blobs/` under a `-partial` name, which Ollama's prune and specd's remove after an hour; an
unfinished manifest is next to `manifests/`.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from specd.errors import InvalidName, ModelNotFound, StoreError
from specd.store import blobs, safe_files
from specd.store.file_identity import stamp_if_readable
from specd.store.file_threads import FileThreads
from specd.store.manifest import (
    digests_in_file,
    digests_of,
    manifest_files,
    parse_manifest,
    referenced_digests,
)
from specd.store.name import Name
from specd.store.prune import prune

T = TypeVar("T")

log = logging.getLogger(__name__)


class StoreWriter:
    """Writer of a store, safe among threads and among processes.

    Methods block: call them in `threads`, and those that lock the store with `run_exclusive`.
    Digests are "sha256:<64 hex digits>".  All methods raise StoreError.

    noprune: OLLAMA_NOPRUNE, keep layers that no model names any more.
    lock_timeout_s: how long to wait for another specd that changes the store.
    """

    def __init__(
        self,
        root: Path,
        *,
        noprune: bool = False,
        lock_timeout_s: float = safe_files.LOCK_TIMEOUT_S,
    ) -> None:
        self.root = root
        self.threads = FileThreads("store")
        self._noprune = noprune
        self._lock_timeout_s = lock_timeout_s
        self._blobs = root / "blobs"
        self._manifests = root / "manifests"

    async def run_exclusive(self, work: Callable[[], T]) -> T:
        """Run a method that locks the store in its thread, and return the result."""
        return await self.threads.run_exclusive(work, self._lock_timeout_s)

    def access_problem(self) -> str:
        """Return why the store cannot be written, as far as can be checked; "" if it can."""
        for folder in (self._blobs, self._manifests):
            # Unlike `Path.exists`, os.path.exists is False below an unreadable folder.
            existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110
            if not existing.is_dir():
                return f"{existing} is not a directory"
            if not os.access(existing, os.W_OK | os.X_OK):
                return f"{existing} cannot be written"
        return ""

    # ------------------------------------------------------------------ blobs

    def blob_path(self, digest: str) -> Path:
        return blobs.path_of(self.root, digest)

    def partial_path(self, digest: str) -> Path:
        """Return the file of an unfinished download; Ollama uses the same name."""
        path = self.blob_path(digest)
        return path.with_name(f"{path.name}-partial")

    def has_blob(self, digest: str, n_bytes: int | None = None) -> bool:
        """Return whether the blob exists.  n_bytes: a blob of another size is damaged."""
        path = self.blob_path(digest)
        return path.is_file() and (n_bytes is None or path.stat().st_size == n_bytes)

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """Yield a path in `blobs/` for a temporary file; remove it afterwards unless `keep` did."""
        self.prepare()
        path = self._blobs / f"sha256-{secrets.token_hex(32)}-partial"
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # report the first error, not this one
                path.unlink()

    def keep(self, path: Path, digest: str) -> None:
        """Make a finished file in `blobs/` the blob `digest`; the caller has checked the digest.

        An existing blob is compared, and replaced if it is damaged.
        """
        target = self.blob_path(digest)
        with safe_files.to_store_errors(f"write the blob {digest}"):
            before = stamp_if_readable(target)
            if before is None or not _is_same(path, target):
                path.chmod(0o644)
                safe_files.sync(path)
                with safe_files.exclusive_lock(self._blobs, self._lock_timeout_s):
                    # Otherwise another writer was faster, and its file may be in use.
                    if stamp_if_readable(target) in {before, None}:
                        path.replace(target)
                        safe_files.sync(target.parent)
            path.unlink(missing_ok=True)

    def put(self, data: bytes) -> tuple[str, bool]:
        """Store a small blob; return its digest and whether it is new."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if self._is_whole(digest, data):
            return digest, False
        with self.staged() as path:
            with safe_files.to_store_errors(f"write the blob {digest}"):
                path.write_bytes(data)
            self.keep(path, digest)
        return digest, True

    def _is_whole(self, digest: str, data: bytes) -> bool:
        """Return whether the blob holds `data`; a power cut may have left an empty file."""
        path = self.blob_path(digest)
        try:
            return path.is_file() and safe_files.read(path, len(data)) == data
        except OSError:
            return False

    # ------------------------------------------------------------------ manifests

    def manifest_path(self, name: Name) -> Path:
        """Return the manifest's path; parts that exist have the case of the disk."""
        path = self._manifests
        for part in (name.host, name.namespace, name.model, name.tag):
            path /= _entry_on_disk(path, part)
        return path

    def name_on_disk(self, name: Name) -> Name:
        """Return the name; parts that exist have the case of the disk."""
        host, namespace, model, tag = self.manifest_path(name).relative_to(self._manifests).parts
        return replace(name, host=host, namespace=namespace, model=model, tag=tag)

    def check_name(self, name: Name) -> None:
        """Raise InvalidName if a part of the name is too long for the file system.

        Ollama's grammar allows a host of 350 characters; most file systems allow 255.
        """
        path = self.manifest_path(name)
        # A missing folder would hide that an entry in it has too long a name.
        try:
            folder = next(folder for folder in path.parents if folder.exists())
            for part in (path, *(folder / part for part in path.relative_to(folder).parts)):
                with contextlib.suppress(FileNotFoundError):
                    os.lstat(part)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                longest = max(map(len, (name.host, name.namespace, name.model, name.tag)))
                raise InvalidName(
                    f"invalid model name: a part of it has {longest} characters, more than the"
                    " store's file system allows"
                ) from error

    def publish(
        self, name: Name, manifest: bytes, *, prune: bool = True, blob_lock: BlobLock | None = None
    ) -> bool:
        """Write the manifest `name` with exactly these bytes; return whether blobs were removed.

        prune: remove blobs that only the replaced manifest named.
        blob_lock: has protected the new model's blobs so far; closed here.
        Raises StoreError if a blob in the manifest is not in the store.
        """
        new = digests_of(parse_manifest(manifest, f"the manifest of {name.short}"))
        self.check_name(name)
        with self._exclusive():
            missing = sorted(digest for digest in new if not self.has_blob(digest))
            if missing:
                raise StoreError(f"cannot write {name.short}: the blob {missing[0]} is gone")
            if blob_lock is not None:
                blob_lock.close()  # from here on, the store's lock protects them
            return self._replace(self.manifest_path(name), manifest, prune=prune)

    def copy(self, source: Name, destination: Name) -> None:
        """Copy a manifest.  Raises ModelNotFound, InvalidName if the destination is too long."""
        self.check_name(destination)
        with self._exclusive():
            path, target = self.manifest_path(source), self.manifest_path(destination)
            if not safe_files.is_file(path):
                raise ModelNotFound(source.short)
            if path != target:
                self._replace(target, blobs.read_bytes(path), prune=True)

    def delete(self, name: Name) -> None:
        """Delete a manifest, folders left empty, and blobs that no other manifest names.

        Raises ModelNotFound.
        """
        with self._exclusive():
            path = self.manifest_path(name)
            if not safe_files.is_file(path):
                raise ModelNotFound(name.short)
            old = digests_in_file(path)
            with safe_files.to_store_errors(f"delete {name.short}"):
                path.unlink()
                safe_files.sync(path.parent)
            self._remove_empty(path.parent)
            self._remove_unused(old)

    def discard(self, digests: Iterable[str]) -> None:
        """Remove the blobs that no manifest names and no process has locked.

        This cleans up after a failed create, so OLLAMA_NOPRUNE does not apply.
        """
        with self._exclusive():
            self._remove_unused(frozenset(digests))

    def prune(self) -> None:
        """Remove unused files at start, unless OLLAMA_NOPRUNE is set."""
        # Without manifests (is a disk not mounted?) every blob would seem unused.
        if self._noprune or not (self._blobs.is_dir() and self._manifests.is_dir()):
            return
        with self._exclusive():
            prune(self._blobs, self._manifests, {self.root, self._manifests})

    # ------------------------------------------------------------------ inside the lock

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock the store: no other specd changes manifests or removes their blobs meanwhile."""
        self.prepare()
        with safe_files.to_store_errors(f"lock {self._manifests}"):
            lock = contextlib.ExitStack()
            lock.enter_context(safe_files.exclusive_lock(self._manifests, self._lock_timeout_s))
        with lock:
            yield

    def prepare(self) -> None:
        """Make the store's folders if they are missing."""
        with safe_files.to_store_errors(f"write to {self.root}"):
            safe_files.make_folders(self._blobs)
            safe_files.make_folders(self._manifests)

    def _replace(self, path: Path, manifest: bytes, *, prune: bool) -> bool:
        old = digests_in_file(path)
        with safe_files.to_store_errors(f"write {path}"):
            safe_files.make_folders(path.parent)
            staged = self._temporary_folder() / f".specd-{secrets.token_hex(8)}"
            try:
                staged.write_bytes(manifest)
                staged.chmod(0o644)
                safe_files.move(staged, path)
            finally:
                staged.unlink(missing_ok=True)
                self._remove_empty(path.parent)
        unused = old - digests_in_file(path)
        if not unused or not prune or self._noprune:
            return False
        self._remove_unused(unused)
        return True

    def _temporary_folder(self) -> Path:
        """Return a folder on the manifests' file system in which no manifest is looked for.

        `manifests/` may be a link or a mount; a file directly in it is not a manifest.
        """
        one_disk = self.root.stat().st_dev == self._manifests.stat().st_dev
        return self.root if one_disk else self._manifests

    def _remove_empty(self, folder: Path) -> None:
        while folder != self._manifests:
            try:
                folder.rmdir()
            except OSError:
                return  # not empty
            folder = folder.parent

    def _remove_unused(self, digests: frozenset[str]) -> None:
        """Remove unreferenced blobs; after an error, the next start's prune removes the rest."""
        try:
            used = referenced_digests(manifest_files(self._manifests))
        except StoreError as error:
            log.warning("no blob is removed, because any may be in use: %s", error)
            return
        for digest in sorted(digests - used):
            try:
                safe_files.remove_if_unlocked(self.blob_path(digest))
            except (OSError, StoreError) as error:
                log.warning("cannot remove the blob %s: %s", digest, error)


class BlobLock:
    """A set of locked blobs, which no specd removes until `close`.

    The methods block and may be called from several threads.
    """

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._stack: contextlib.ExitStack | None = contextlib.ExitStack()

    def add(self, digests: Iterable[str]) -> None:
        """Lock more blobs; do nothing after `close`.  Raises StoreError if a blob is gone."""
        with self._lock:
            if self._stack is None:
                return
            for digest in set(digests):
                with safe_files.to_store_errors(f"use the blob {digest}"):
                    self._stack.enter_context(
                        safe_files.shared_lock(self._writer.blob_path(digest))
                    )

    def close(self) -> None:
        with self._lock:
            if self._stack is not None:
                self._stack.close()
                self._stack = None


def digest_of_file(path: Path) -> str:
    """Return the digest of a whole file."""
    with safe_files.to_store_errors(f"read {path}"), path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _is_same(path: Path, blob: Path) -> bool:
    try:
        return filecmp.cmp(path, blob, shallow=False)
    except FileNotFoundError:  # removed meanwhile
        return False


def _entry_on_disk(folder: Path, part: str) -> str:
    """Return the entry named `part`, else one that differs only in case, else `part`."""
    try:
        entries = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return part
    if part in entries:
        return part
    return next((entry for entry in entries if entry.lower() == part.lower()), part)
