"""A blob that comes in over the wire: streamed to disk, checked, and only then a blob."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator

from specd.errors import InvalidRequest
from specd.store import durable
from specd.store.writer import Writer


async def receive(writer: Writer, digest: str, chunks: AsyncIterator[bytes]) -> None:
    """Store the chunks as the blob of that digest ("sha256:<64 hex digits>").

    Raises InvalidRequest where they are others, StoreError for a full disk; whatever ends this
    early, nothing stays behind.
    """
    incoming = await asyncio.to_thread(_Incoming, writer)
    try:
        async for chunk in chunks:
            await asyncio.to_thread(incoming.write, chunk)
        await asyncio.to_thread(incoming.keep, digest)
    finally:
        await asyncio.to_thread(incoming.close)


class _Incoming:
    """A file in the making.

    Its methods wait for each other: a handler that is cancelled leaves its last write running.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._hash = hashlib.sha256()
        with contextlib.ExitStack() as stack:
            self._path = stack.enter_context(writer.staged())
            with durable.told(f"write {self._path}"):
                self._file = stack.enter_context(self._path.open("wb", buffering=0))
            self._stack = stack.pop_all()

    def write(self, chunk: bytes) -> None:
        with self._lock, durable.told("write the blob"):
            if not self._file.closed:
                self._hash.update(chunk)
                self._file.write(chunk)

    def keep(self, digest: str) -> None:
        with self._lock:
            self._file.close()
            received = f"sha256:{self._hash.hexdigest()}"
            if received != digest:
                raise InvalidRequest(f'digest mismatch, expected "{digest}", got "{received}"')
            self._writer.keep(self._path, digest)

    def close(self) -> None:
        """Remove the file unless it was kept."""
        with self._lock:
            self._stack.close()
