"""The running downloads: one per blob, shared by all clients that wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from specd import core
from specd.errors import ShuttingDown
from specd.registry.download import Download
from specd.registry.remote import Remote
from specd.registry.transfer_context import TransferContext

PROGRESS_INTERVAL_S: Final = 0.06
#: Without progress, the last line is repeated to keep the connection alive.
_KEEPALIVE_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _SharedDownload:
    download: Download
    task: asyncio.Task[None]
    n_followers: int = 0
    stopping: bool = False


class Downloads:
    """Running downloads by digest.  Use it within one event loop."""

    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self._shared: dict[str, _SharedDownload] = {}
        self._closed = False

    async def follow(
        self, remote: Remote, digest: str, total: int
    ) -> AsyncGenerator[core.Progress, None]:
        """Yield the progress, at most every 60 ms, until the blob is in the store.

        total: bytes.  All followers of a digest share one download; it stops when the last closes
        its generator.  Raises what Download.run raises, and ShuttingDown.
        """
        shared = await self._join(remote, digest, total)
        reported, reported_at = -1, time.monotonic()
        try:
            while not (await asyncio.wait({shared.task}, timeout=PROGRESS_INTERVAL_S))[0]:
                now, completed = time.monotonic(), shared.download.completed
                if completed != reported or now - reported_at >= _KEEPALIVE_S:
                    reported, reported_at = completed, now
                    yield layer_progress("pulling", digest, total, completed)
            if shared.task.cancelled():
                raise ShuttingDown("the server is shutting down")
            shared.task.result()
        finally:
            await self._leave(shared)
        if reported != total:
            yield layer_progress("pulling", digest, total, total)

    async def close(self) -> None:
        """Stop all downloads; their bytes stay on disk."""
        self._closed = True
        tasks = {shared.task for shared in self._shared.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _join(self, remote: Remote, digest: str, total: int) -> _SharedDownload:
        while (shared := self._shared.get(digest)) and shared.stopping:
            await asyncio.wait({shared.task})
            self._drop(shared)
        if shared is None:
            if self._closed:
                raise ShuttingDown("the server is shutting down")
            download = Download(remote, digest, total, self._context)
            task = asyncio.create_task(download.run(), name=f"download {digest}")
            shared = self._shared[digest] = _SharedDownload(download, task)
        shared.n_followers += 1
        return shared

    async def _leave(self, shared: _SharedDownload) -> None:
        shared.n_followers -= 1
        if shared.n_followers:
            return
        shared.stopping = True
        if not shared.task.done():
            shared.task.cancel()
            await asyncio.wait({shared.task})
        if not shared.task.cancelled():
            shared.task.exception()  # mark it as retrieved
        self._drop(shared)

    def _drop(self, shared: _SharedDownload) -> None:
        digest = shared.download.digest
        if self._shared.get(digest) is shared:
            del self._shared[digest]


def layer_progress(verb: str, digest: str, total: int, completed: int) -> core.Progress:
    """Return the progress of one blob, in bytes.  verb: "pulling" or "pushing"."""
    return core.Progress(
        status=f"{verb} {digest[7:19]}", digest=digest, total=total, completed=completed
    )
