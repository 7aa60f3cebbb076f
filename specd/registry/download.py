"""Download of one blob: many connections, one file, hashed while it grows.

Read `Download.run` first.  An interrupted download (no client left, a crash, a full disk) keeps its
bytes, and the next download resumes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

from specd.errors import RegistryError, RegistryUnreachable, StoreError
from specd.registry.partial import Partial, Span, Spans
from specd.registry.remote import (
    RedirectPolicy,
    RegistryRefused,
    Remote,
    check,
    describe_error,
    is_retryable,
    redirect_target,
    retry_pause_s,
)
from specd.registry.transfer_context import TransferContext

log = logging.getLogger(__name__)

N_CONNECTIONS: Final = 16
STALL_S: Final = 30.0
MAX_TRIES: Final = 6
_SAVE_EVERY_S: Final = 1.0
_HASH_BYTES: Final = 4 * 2**20
_HASHES_AT_ONCE: Final = 16
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
#: Status codes of storage for an expired URL, and of a registry for an expired token.
_EXPIRED: Final = frozenset({400, 401, 403, 410})


class DigestMismatch(RegistryError):
    """A complete download whose digest is wrong."""


class _RangeIgnored(Exception):
    """The server sends the whole blob although a range was requested."""


class Download:
    """Resumable download of one blob.

    digest: "sha256:<64 hex digits>".  total: bytes.
    """

    def __init__(self, remote: Remote, digest: str, total: int, context: TransferContext) -> None:
        self.digest = digest
        self.total = total
        self._remote = remote
        self._writer = context.writer
        self._disk = context.disk
        self._timers = context.timers
        self._sizes = context.sizes
        self._received = context.traffic.received
        self._spans = Spans((), self._sizes.span)
        self._moved = asyncio.Event()
        self._source: URL | None = None
        self._locating = asyncio.Lock()

    @property
    def completed(self) -> int:
        """Bytes on disk; the number falls only if a resumed file turns out to be damaged."""
        return self._spans.completed

    async def run(self) -> None:
        """Download until the blob is in the store with the right digest.

        Raises RegistryError and StoreError; after DigestMismatch no bytes are kept.
        """
        path = self._writer.partial_path(self.digest)
        part_size = self._sizes.download_part(self.total)
        files = Partial(path, self.total, part_size)
        is_in_store = partial(self._writer.has_blob, self.digest, self.total)
        try:
            await self._disk.do(self._writer.prepare)
            await self._disk.do(files.open)
            if await self._disk.do(is_in_store):  # another download has just finished
                return await self._disk.do(files.remove)
            self._spans = Spans(files.parts, self._sizes.span)
            resumed = self.completed > 0
            digest = await self._fetch_and_hash(files)
            if resumed and digest != self.digest:
                log.warning(
                    "%s: the bytes on disk are damaged; downloading all again", self.digest[7:19]
                )
                await self._disk.do(files.restart)
                self._spans = Spans(files.parts, self._sizes.span)
                digest = await self._fetch_and_hash(files)
            if digest != self.digest:
                await self._disk.do(files.remove)
                raise DigestMismatch(
                    "digest mismatch, file must be downloaded again:"
                    f" want {self.digest}, got {digest}"
                )
            await self._disk.do(lambda: self._finish(files, path))
        finally:
            files.close()

    async def _fetch_and_hash(self, files: Partial) -> str:
        """Fetch all missing bytes and return the digest of the whole file."""
        try:
            async with asyncio.TaskGroup() as group:
                hashing = group.create_task(self._hash(files))
                saving = group.create_task(self._save_periodically(files))
                await self._fetch_all(files)
                saving.cancel()
            return f"sha256:{hashing.result()}"
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            with contextlib.suppress(StoreError):  # report the first error, not this one
                await self._disk.do(lambda: files.save(self._spans.parts()))

    def _finish(self, files: Partial, path: Path) -> None:
        """Store the blob, then remove the state files; a crash in between is harmless."""
        self._writer.keep(path, self.digest)
        files.forget()

    # ------------------------------------------------------------------ during the transfer

    async def _save_periodically(self, files: Partial) -> None:
        while True:
            before = self.completed
            parts = self._spans.parts()
            await self._disk.do(partial(files.save, parts))
            if self.completed == before:
                self._moved.clear()
                await self._moved.wait()
            else:
                await self._timers.sleep(_SAVE_EVERY_S)

    async def _hash(self, files: Partial) -> str:
        """Hash the bytes as they arrive; return the digest of the whole file in hex."""
        sha, position = hashlib.sha256(), 0

        def read_on(end: int) -> int:
            at = position
            while at < end:
                data = files.read(min(end - at, _HASH_BYTES), at)
                sha.update(data)
                at += len(data)
            return at

        while position < self.total:
            end = min(self._spans.contiguous_end, position + _HASHES_AT_ONCE * _HASH_BYTES)
            if end == position:
                self._moved.clear()
                await self._moved.wait()
            else:
                position = await self._disk.do(partial(read_on, end))
        return sha.hexdigest()

    # ------------------------------------------------------------------ the transfer

    async def _fetch_all(self, files: Partial) -> None:
        waiting = deque(self._spans)

        async def connection() -> None:
            while waiting:
                await self._fetch_span(files, waiting.popleft())

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(N_CONNECTIONS, len(waiting))):
                    group.create_task(connection())
        except ExceptionGroup as errors:
            if errors.subgroup(_RangeIgnored) is None:
                raise errors.exceptions[0] from None
            log.info("%s: the server ignores ranges; using one connection", self.digest[7:19])
            await self._retry(lambda: self._fetch_whole(files), lambda: self.completed)

    async def _fetch_span(self, files: Partial, span: Span) -> None:
        await self._retry(lambda: self._fetch(files, span), lambda: span.start)

    async def _retry(
        self, fetch: Callable[[], Awaitable[None]], position: Callable[[], int]
    ) -> None:
        """Repeat `fetch` until it succeeds; raise after MAX_TRIES failures without progress.

        position: bytes so far.  A refusal that a retry cannot change is raised at once.
        """
        failures = 0
        while True:
            before = position()
            try:
                return await fetch()
            except (aiohttp.ClientError, TimeoutError, RegistryRefused) as error:
                if isinstance(error, RegistryRefused) and not is_retryable(error.status, *_EXPIRED):
                    raise
                failures = failures + 1 if position() == before else 1
                if failures == MAX_TRIES:
                    message = f"max retries exceeded: {describe_error(error)}"
                    raise RegistryUnreachable(message) from error
                log.info("%s: %s, trying again", self.digest[7:19], describe_error(error))
                # After a stall, a new connection helps at once.
                pause_s = 0.0 if isinstance(error, TimeoutError) else retry_pause_s(error, failures)
            await self._timers.sleep(pause_s)

    async def _fetch(self, files: Partial, span: Span) -> None:
        async with self._open(span.start, span.end) as response:
            if response.status == 206:
                self._check_range(response, span.start)
            elif (span.start, span.end) != (0, self.total):
                raise _RangeIgnored
            while data := await self._next_chunk(response):
                await self._keep(files, span, data[: span.end - span.start])
                if span.done:
                    return
        raise aiohttp.ClientPayloadError("unexpected EOF")

    async def _fetch_whole(self, files: Partial) -> None:
        """Fetch the blob from its first byte and skip what is on disk already."""
        position = 0
        async with self._open(0, self.total) as response:
            while data := await self._next_chunk(response):
                for span in self._spans.before(position + len(data)):
                    missing = data[span.start - position : span.end - position]
                    await self._keep(files, span, missing)
                position += len(data)
                if self.completed == self.total:
                    return
        raise aiohttp.ClientPayloadError("unexpected EOF")

    async def _next_chunk(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the next bytes, empty at the end.  Raises TimeoutError after STALL_S."""
        async with self._timers.watch(STALL_S):
            return await response.content.readany()

    async def _keep(self, files: Partial, span: Span, data: bytes) -> None:
        at = span.start
        await self._disk.do(lambda: files.write(data, at))
        self._spans.advance(span, len(data))
        self._received(len(data))
        self._moved.set()

    def _check_range(self, response: aiohttp.ClientResponse, start: int) -> None:
        sent = _CONTENT_RANGE.fullmatch(response.headers.get(hdrs.CONTENT_RANGE, "").strip())
        if sent is None:
            return
        if int(sent[1]) != start:
            raise RegistryError(
                f"the registry sent bytes {sent[1]}-{sent[2]}, but specd asked from {start}"
            )
        if sent[3] not in {"*", str(self.total)}:
            raise RegistryError(
                f"{self.digest} has {sent[3]} bytes, but the manifest says {self.total}"
            )

    # ------------------------------------------------------------------ requests

    @asynccontextmanager
    async def _open(self, start: int, end: int) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._locating:
            source = self._source = self._source or await self._locate()
        try:
            async with self._open_response(
                source, f"bytes={start}-{end - 1}", RedirectPolicy.FOLLOW
            ) as response:
                yield response
        except RegistryRefused as error:
            if error.status in _EXPIRED and self._source == source:
                self._source = None
            raise

    async def _locate(self) -> URL:
        """Return the blob's URL, on another host if the registry redirects there."""
        url = self._remote.url / "blobs" / self.digest
        # Ask for one byte, so that a registry that does not redirect does not send the whole blob.
        async with self._open_response(url, "bytes=0-0", RedirectPolicy.SAME_HOST) as response:
            return redirect_target(response) or response.url

    @asynccontextmanager
    async def _open_response(
        self, url: URL, byte_range: str, redirects: RedirectPolicy
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response with a status below 400, whose body is not read yet."""
        headers: dict[str, str] = {hdrs.RANGE: byte_range, hdrs.ACCEPT_ENCODING: "identity"}
        opened = self._remote.open(hdrs.METH_GET, url, headers=headers, redirects=redirects)
        async with AsyncExitStack() as stack:
            async with self._timers.watch(STALL_S):
                response = await stack.enter_async_context(opened)
                await check(response)  # reading an error's text may stall, too
            yield response
