"""Shared locks on the blobs of a model whose manifest is not written yet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable

from specd.store import atomic_files
from specd.store.writer import StoreWriter


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
                with atomic_files.to_store_errors(f"use the blob {digest}"):
                    self._stack.enter_context(
                        atomic_files.shared_lock(self._writer.blob_path(digest))
                    )

    def close(self) -> None:
        with self._lock:
            if self._stack is not None:
                self._stack.close()
                self._stack = None
