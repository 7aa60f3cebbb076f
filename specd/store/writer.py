"""Writes Ollama's store: blobs, manifests, copies, deletions.

Everything appears whole or not at all, also where the process is killed or the disk is full.  What
is not finished lies in `blobs/` under a `-partial` name, which Ollama's prune and ours remove after
an hour; a manifest in the making lies beside `manifests/`.  Methods block: call them off the event
loop, in `threads`, those that take the store's lock by `alone`.  They are safe among threads and
among processes.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

from specd.errors import InvalidName, ModelNotFound, StoreError
from specd.store import atomic_files, blobs, safe_open
from specd.store.file_threads import FileThreads
from specd.store.manifest import parse_manifest
from specd.store.name import Name
from specd.store.prune import prune
from specd.store.references import digests_in_file, digests_of, manifest_files, referenced_digests

T = TypeVar("T")

log = logging.getLogger(__name__)

_CHUNK: Final = 1 << 20


class Closable(Protocol):
    def close(self) -> None: ...


class StoreWriter:
    """noprune: OLLAMA_NOPRUNE; layers that a model no longer names then stay.

    patience_s: how long another specd that changes the store is waited for.
    Digests are "sha256:<64 hex digits>".  All methods raise StoreError.
    """

    def __init__(
        self,
        root: Path,
        *,
        noprune: bool = False,
        lock_timeout_s: float = atomic_files.LOCK_TIMEOUT_S,
    ) -> None:
        self.root = root
        self.threads = FileThreads("store")
        self._noprune = noprune
        self._lock_timeout_s = lock_timeout_s
        self._blobs = root / "blobs"
        self._manifests = root / "manifests"

    async def run_exclusive(self, work: Callable[[], T]) -> T:
        """The result of one of the methods that take the store's lock, for an event loop."""
        return await self.threads.run_exclusive(work, self._lock_timeout_s)

    def access_problem(self) -> str:
        """Why nothing can be written here, as far as that can be seen; "" where nothing is."""
        for folder in (self._blobs, self._manifests):
            # As `Path.exists` does not: below a folder that is closed to us nothing is seen.
            there = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110
            if not there.is_dir():
                return f"{there} is not a directory"
            if not os.access(there, os.W_OK | os.X_OK):
                return f"{there} cannot be written"
        return ""

    # ------------------------------------------------------------------ blobs

    def blob_path(self, digest: str) -> Path:
        return blobs.path_of(self.root, digest)

    def partial_path(self, digest: str) -> Path:
        """Where a download of that blob grows, under Ollama's name, so that either resumes it."""
        path = self.blob_path(digest)
        return path.with_name(f"{path.name}-partial")

    def has_blob(self, digest: str) -> bool:
        return self.blob_path(digest).is_file()

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A path in `blobs/` for a file in the making; removed afterwards unless it was kept."""
        self.prepare()
        path = self._blobs / f"sha256-{secrets.token_hex(32)}-partial"
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # what ended the work is the error to tell
                path.unlink()

    def keep(self, path: Path, digest: str) -> None:
        """Make a finished file in `blobs/`, whose digest was checked, the blob of that digest.

        A blob that is there is read: a damaged one is replaced.
        """
        target = self.blob_path(digest)
        with atomic_files.to_store_errors(f"write the blob {digest}"):
            before = _file_identity(target)
            if before is None or not _is_same(path, target):
                path.chmod(0o644)
                atomic_files.sync(path)
                with atomic_files.exclusive_lock(self._blobs, self._lock_timeout_s):
                    # Else another writer was faster, and somebody may hold its file.
                    if _file_identity(target) in {before, None}:
                        path.replace(target)
                        atomic_files.sync(target.parent)
            path.unlink(missing_ok=True)

    def put(self, data: bytes) -> tuple[str, bool]:
        """Store a small blob: its digest, and whether it is new."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if self._is_whole(digest, data):
            return digest, False
        with self.staged() as path:
            with atomic_files.to_store_errors(f"write the blob {digest}"):
                path.write_bytes(data)
            self.keep(path, digest)
        return digest, True

    def _is_whole(self, digest: str, data: bytes) -> bool:
        """Whether that blob is here as it should be: a power cut may have left an empty one."""
        path = self.blob_path(digest)
        try:
            return path.is_file() and safe_open.read(path, len(data)) == data
        except OSError:
            return False

    # ------------------------------------------------------------------ manifests

    def manifest_path(self, name: Name) -> Path:
        """Where that model lies or would: each part as it is spelled on disk, if it is there."""
        path = self._manifests
        for part in (name.host, name.namespace, name.model, name.tag):
            path /= _entry_on_disk(path, part)
        return path

    def name_on_disk(self, name: Name) -> Name:
        """The same name, each part as it is spelled on disk, if it is there."""
        host, namespace, model, tag = self.manifest_path(name).relative_to(self._manifests).parts
        return replace(name, host=host, namespace=namespace, model=model, tag=tag)

    def check_name(self, name: Name) -> None:
        """Raise InvalidName where the file system has no room for the name.

        Ollama's grammar allows a host of 350 characters; most file systems take 255.
        """
        path = self.manifest_path(name)
        # A folder that is missing would hide that what is to lie in it has too long a name.
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
                    " store's file system takes"
                ) from error

    def publish(
        self, name: Name, manifest: bytes, *, prune: bool = True, blob_lock: Closable | None = None
    ) -> bool:
        """Make these very bytes the manifest of that name, in place of what was there.

        prune: remove the blobs that the old manifest alone named; True where it named such.
        hold: what protected the new model's blobs till now; it is closed.
        Raises StoreError where a blob that the manifest names is not in the store.
        """
        new = digests_of(parse_manifest(manifest, f"the manifest of {name.short}"))
        self.check_name(name)
        with self._exclusive():
            missing = sorted(digest for digest in new if not self.has_blob(digest))
            if missing:
                raise StoreError(f"cannot write {name.short}: the blob {missing[0]} is gone")
            if blob_lock is not None:
                blob_lock.close()  # from here on the lock protects them
            return self._replace(self.manifest_path(name), manifest, prune=prune)

    def copy(self, source: Name, destination: Name) -> None:
        """Raises ModelNotFound, InvalidName for a destination that no file can have."""
        self.check_name(destination)
        with self._exclusive():
            path, target = self.manifest_path(source), self.manifest_path(destination)
            if not safe_open.is_file(path):
                raise ModelNotFound(source.short)
            if path != target:
                self._replace(target, blobs.read_bytes(path), prune=True)

    def delete(self, name: Name) -> None:
        """The manifest, the folders that it leaves empty, and the blobs that no other names.

        Raises ModelNotFound.
        """
        with self._exclusive():
            path = self.manifest_path(name)
            if not safe_open.is_file(path):
                raise ModelNotFound(name.short)
            old = digests_in_file(path)
            with atomic_files.to_store_errors(f"delete {name.short}"):
                path.unlink()
                atomic_files.sync(path.parent)
            self._remove_empty(path.parent)
            self._remove_unused(old)

    def discard(self, digests: Iterable[str]) -> None:
        """Remove those of these blobs that no manifest names and nothing holds.

        For what a model that was not made leaves; OLLAMA_NOPRUNE is about models that were.
        """
        with self._exclusive():
            self._remove_unused(frozenset(digests))

    def prune(self) -> None:
        """At start: remove what no manifest names (contract 4); nothing with OLLAMA_NOPRUNE."""
        # Without manifests (a disk that is not mounted?) every blob would seem to be unused.
        if self._noprune or not (self._blobs.is_dir() and self._manifests.is_dir()):
            return
        with self._exclusive():
            prune(self._blobs, self._manifests, {self.root, self._manifests})

    # ------------------------------------------------------------------ inside the lock

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """No other specd changes manifests, or removes what they name, while this lasts."""
        self.prepare()
        with atomic_files.to_store_errors(f"lock {self._manifests}"):
            lock = contextlib.ExitStack()
            lock.enter_context(atomic_files.exclusive_lock(self._manifests, self._lock_timeout_s))
        with lock:
            yield

    def prepare(self) -> None:
        """Make the store's folders where they are missing."""
        with atomic_files.to_store_errors(f"write to {self.root}"):
            atomic_files.make_folders(self._blobs)
            atomic_files.make_folders(self._manifests)

    def _replace(self, path: Path, manifest: bytes, *, prune: bool) -> bool:
        old = digests_in_file(path)
        with atomic_files.to_store_errors(f"write {path}"):
            atomic_files.make_folders(path.parent)
            staged = self._temporary_folder() / f".specd-{secrets.token_hex(8)}"
            try:
                staged.write_bytes(manifest)
                staged.chmod(0o644)
                atomic_files.move(staged, path)
            finally:
                staged.unlink(missing_ok=True)
                self._remove_empty(path.parent)
        unused = old - digests_in_file(path)
        if not unused or not prune or self._noprune:
            return False
        self._remove_unused(unused)
        return True

    def _temporary_folder(self) -> Path:
        """A folder of the same file system, where nobody looks for manifests.

        `manifests/` may be a link or a mount; nothing but files four folders deep counts there.
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
        """What remains after an error is left to the next start's prune."""
        try:
            used = referenced_digests(manifest_files(self._manifests))
        except StoreError as error:
            log.warning("no blob is removed, since any may be in use: %s", error)
            return
        for digest in sorted(digests - used):
            try:
                atomic_files.remove_if_unlocked(self.blob_path(digest))
            except (OSError, StoreError) as error:
                log.warning("cannot remove the blob %s: %s", digest, error)


def digest_of_file(path: Path) -> str:
    """Reads it all."""
    with atomic_files.to_store_errors(f"read {path}"), path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _is_same(path: Path, blob: Path) -> bool:
    try:
        return filecmp.cmp(path, blob, shallow=False)
    except FileNotFoundError:  # removed meanwhile
        return False


def _file_identity(blob: Path) -> tuple[int, int, int] | None:
    """Differs where another was put in its place; None where there is none."""
    if not blob.is_file():
        return None
    seen = blob.stat()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def _entry_on_disk(folder: Path, part: str) -> str:
    """The entry of that name; else one that differs in case alone; else the part as it is."""
    try:
        entries = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return part
    if part in entries:
        return part
    return next((entry for entry in entries if entry.lower() == part.lower()), part)
