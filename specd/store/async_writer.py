"""The writer as an event loop uses it: what changes the store runs in the store's own threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from specd.store.blob_upload import receive
from specd.store.name import Name
from specd.store.writer import StoreWriter


class AsyncWriter:
    """Its methods raise what Writer's do, and StoreError where their turn does not come."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer

    async def copy(self, source: Name, destination: Name, /) -> None:
        await self._writer.run_exclusive(partial(self._writer.copy, source, destination))

    async def delete(self, name: Name, /) -> None:
        await self._writer.run_exclusive(partial(self._writer.delete, name))

    async def has_blob(self, digest: str, /) -> bool:
        return await asyncio.to_thread(self._writer.has_blob, digest)

    async def receive(self, digest: str, chunks: AsyncIterator[bytes], /) -> None:
        """Store what comes as the blob of that digest; see upload.py."""
        await receive(self._writer, digest, chunks)
