"""A blob that comes in over the wire: streamed to disk, checked, and only then a blob."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from specd.errors import InvalidRequest
from specd.store import durable
from specd.store.writer import Writer


async def receive(writer: Writer, digest: str, chunks: AsyncIterator[bytes]) -> None:
    """Store the chunks as the blob of that digest ("sha256:<64 hex digits>").

    Raises InvalidRequest where they are others, StoreError for a full disk; whatever ends this
    early, nothing stays behind.
    """
    incoming = _Incoming(writer)
    try:
        await asyncio.to_thread(incoming.open)
        async for chunk in chunks:
            await asyncio.to_thread(incoming.write, chunk)
        await asyncio.to_thread(incoming.keep, digest)
    finally:
        await asyncio.to_thread(incoming.close)


class _Incoming:
    """A file in the making.

    Its methods wait for each other, and do nothing after `close`: a handler that is cancelled
    leaves its last call running.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._hash = hashlib.sha256()
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._path = Path()
        self._closed = False

    def open(self) -> None:
        with self._lock, durable.told("write the blob"):
            if not self._closed:
                self._path = self._stack.enter_context(self._writer.staged())
                self._file = self._stack.enter_context(self._path.open("wb"))

    def write(self, chunk: bytes) -> None:
        with self._lock, durable.told("write the blob"):
            if self._file is not None:
                self._hash.update(chunk)
                self._file.write(chunk)

    def keep(self, digest: str) -> None:
        with self._lock:
            if self._file is None:
                return
            with durable.told("write the blob"):
                self._file.close()
            received = f"sha256:{self._hash.hexdigest()}"
            if received != digest:
                raise InvalidRequest(f'digest mismatch, expected "{digest}", got "{received}"')
            self._writer.keep(self._path, digest)

    def close(self) -> None:
        """Remove the file unless it was kept."""
        with self._lock, contextlib.suppress(OSError):  # a full disk was told before
            self._file, self._closed = None, True
            self._stack.close()
