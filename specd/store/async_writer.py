"""The store writer for an event loop: changes run in the store's own threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from specd.store.blob_upload import receive
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
        """Store the chunks as the blob `digest`; see `blob_upload.receive`."""
        await receive(self._writer, digest, chunks)
