"""The blobs of an unfinished model: locked meanwhile, and removed if the create fails."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from specd.create.model_parts import ModelPart, put
from specd.errors import StoreError
from specd.store import BlobLock, StoreWriter

log = logging.getLogger(__name__)

#: Another create that fails may remove a blob between its writing and its locking.
_N_TRIES: Final = 3


class NewBlobs:
    """Locked blobs of one create.  `add` and `put` block: call them in the writer's threads."""

    def __init__(self, writer: StoreWriter) -> None:
        self.blob_lock: Final = BlobLock(writer)
        self._writer = writer
        self._new: set[str] = set()

    def add(self, parts: Sequence[ModelPart]) -> None:
        """Lock the blobs of these parts.  Raises StoreError if one is gone."""
        self._new |= {part.layer.digest for part in parts if part.is_new}
        self.blob_lock.add(part.layer.digest for part in parts)

    def put(self, kind: str, data: bytes) -> ModelPart:
        """Store a small layer and lock its blob.  Raises StoreError."""
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
        """Exclude the blobs of these parts from `discard`: a manifest names them now."""
        self._new -= {part.layer.digest for part in parts}

    async def discard(self) -> None:
        """Unlock all blobs, and remove those written here that no manifest names."""
        await self._writer.threads.do(self.blob_lock.close)
        if not self._new:
            return
        try:
            await self._writer.run_exclusive(lambda: self._writer.discard(self._new))
        except StoreError as error:
            log.warning(
                "cannot remove the blobs of a failed create; the next start removes them: %s", error
            )
