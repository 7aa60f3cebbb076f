"""The blobs of a model in the making: held till then, removed if no manifest names them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from specd.create.model_parts import ModelPart, put
from specd.errors import StoreError
from specd.store import BlobLock, StoreWriter

log = logging.getLogger(__name__)

#: Another create that is given up may remove a blob between its writing and its hold.
_N_TRIES: Final = 3


class NewBlobs:
    """`add` and `put` block: call them in the writer's threads."""

    def __init__(self, writer: StoreWriter) -> None:
        self.blob_lock: Final = BlobLock(writer)
        self._writer = writer
        self._new: set[str] = set()

    def add(self, parts: Sequence[ModelPart]) -> None:
        """Hold the blobs of these parts.  Raises StoreError for one that is gone."""
        self._new |= {part.layer.digest for part in parts if part.is_new}
        self.blob_lock.add(part.layer.digest for part in parts)

    def put(self, kind: str, data: bytes) -> ModelPart:
        """Store a small layer, and hold it.  Raises StoreError."""
        for _ in range(_N_TRIES - 1):
            part = put(self._writer, kind, data)
            try:
                self.add([part])
            except StoreError:
                continue
            return part
        part = put(self._writer, kind, data)
        self.add([part])
        return part

    def keep(self, parts: Iterable[ModelPart]) -> None:
        """Leave the blobs of these parts where they are: a manifest names them now."""
        self._new -= {part.layer.digest for part in parts}

    async def discard(self) -> None:
        """Let go of all blobs, and remove those that were written here and no manifest names."""
        await self._writer.threads.do(self.blob_lock.close)
        if not self._new:
            return
        try:
            await self._writer.run_exclusive(lambda: self._writer.discard(self._new))
        except StoreError as error:
            log.warning("blobs of a model that was not made are left to the next start: %s", error)
