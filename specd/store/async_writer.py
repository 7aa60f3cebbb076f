"""The store writer for an event loop: changes run in the store's own threads."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from specd.errors import InvalidRequest
from specd.store import safe_files
from specd.store.name import Name
from specd.store.writer import StoreWriter


class AsyncWriter:
    """Asynchronous wrapper of `StoreWriter`.

    Its methods raise what StoreWriter's do, and StoreError when the lock is not free in time.
    """

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer

    async def copy(self, source: Name, destination: Name, /) -> None:
        await self._writer.run_exclusive(partial(self._writer.copy, source, destination))

    async def delete(self, name: Name, /) -> None:
        await self._writer.run_exclusive(partial(self._writer.delete, name))

    async def has_blob(self, digest: str, /) -> bool:
        return await asyncio.to_thread(self._writer.has_blob, digest)

    async def receive(self, digest: str, chunks: AsyncIterator[bytes], /) -> None:
        """Store the chunks as the blob `digest` ("sha256:<64 hex digits>").

        Raises InvalidRequest if their digest differs, StoreError if they cannot be written.  An
        unfinished upload leaves no file behind.
        """
        incoming, do = _IncomingBlob(self._writer), self._writer.threads.do
        try:
            await do(incoming.open)
            async for chunk in chunks:
                await do(partial(incoming.write, chunk))
            await do(partial(incoming.keep, digest))
        finally:
            await do(incoming.close)


class _IncomingBlob:
    """An unfinished blob file.  Call one method at a time, and always `close`."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._hash = hashlib.sha256()
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO
        self._path: Path

    def open(self) -> None:
        with safe_files.to_store_errors("write the blob"):
            self._path = self._stack.enter_context(self._writer.staged())
            self._file = self._stack.enter_context(self._path.open("wb"))

    def write(self, chunk: bytes) -> None:
        with safe_files.to_store_errors("write the blob"):
            self._hash.update(chunk)
            self._file.write(chunk)

    def keep(self, digest: str) -> None:
        with safe_files.to_store_errors("write the blob"):
            self._file.close()
        received = f"sha256:{self._hash.hexdigest()}"
        if received != digest:
            raise InvalidRequest(f'digest mismatch, expected "{digest}", got "{received}"')
        self._writer.keep(self._path, digest)

    def close(self) -> None:
        """Remove the file unless `keep` stored it."""
        with contextlib.suppress(OSError):  # `write` has already reported a full disk
            self._stack.close()
