"""Upload of one blob to a registry: skipped if it is there, mounted, or sent in parts.

Parts go to the registry one after the other.  If it redirects them (307) to its storage, several
go there at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

from specd.errors import RegistryError, StoreError
from specd.registry.remote import (
    RedirectPolicy,
    RegistryNotFound,
    RegistryRefused,
    Remote,
    check,
    describe_error,
    is_retryable,
    join_url,
    redirect_target,
    retry_pause_s,
)
from specd.registry.transfer_context import TransferContext
from specd.store import name as names
from specd.store.manifest import Layer

log = logging.getLogger(__name__)

_N_AT_ONCE: Final = 4
_MAX_TRIES: Final = 6
_READ_BYTES: Final = 2**20
#: Maximum time without progress; a registry may take long to answer the end of a large part.
STALL_S: Final = 300.0
#: The registry reads the whole blob again before it answers.
_COMMIT_TIMEOUT_S: Final = 3600.0
_BYTES: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"(?:bytes=)?0-(\d+)")


class _UploadLost(RegistryError):
    """The registry has forgotten the upload."""


class Upload:
    """Upload of one blob.

    total, completed: bytes; `completed` falls if a part must be sent again.
    """

    def __init__(self, remote: Remote, layer: Layer, context: TransferContext) -> None:
        self.digest = layer.digest
        self.total = layer.size
        self._parent = layer.parent
        self._remote = remote
        self._path = context.writer.blob_path(layer.digest)
        self._disk = context.disk
        self._timers = context.timers
        self._sizes = context.sizes
        self._count_sent = context.traffic.sent
        self._sent: dict[int, int] = {}  # offset of a part → bytes of it that were sent
        self._sums: dict[int, bytes] = {}  # offset of a part → its MD5

    @property
    def completed(self) -> int:
        return sum(self._sent.values())

    async def run(self) -> None:
        """Upload until the registry has the blob.  Raises RegistryError and StoreError."""
        if await self._is_in_registry():
            self._sent = {0: self.total}
            return
        for attempt in range(1, _MAX_TRIES + 1):
            try:
                await self._send()
                break
            except _UploadLost as error:
                if attempt == _MAX_TRIES:
                    raise RegistryError(f"max retries exceeded: {error}") from error
                log.info("%s: %s, uploading it again", self.digest[7:19], error)

    async def _is_in_registry(self) -> bool:
        try:
            await self._remote.ask(hdrs.METH_HEAD, self._remote.url / "blobs" / self.digest)
        except RegistryNotFound:
            return False
        return True

    async def _send(self) -> None:
        url = await self._start_upload()
        if url is None:  # mounted
            self._sent = {0: self.total}
            return
        try:
            async with asyncio.TaskGroup() as group:
                url = await self._send_parts(url, group)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        await self._commit(url)

    async def _start_upload(self) -> URL | None:
        """Return where to send the parts; None if the registry mounted the parent's blob."""
        self._sent.clear()
        self._sums.clear()
        url = self._remote.url / "blobs" / "uploads" / ""
        if self._parent:
            parent = names.parse(self._parent)
            source = f"{parent.namespace}/{parent.model}"
            url = url.with_query({"mount": self.digest, "from": source})
        answer = await self._remote.ask(hdrs.METH_POST, url, redirects=RedirectPolicy.NONE)
        return None if answer.status == 201 else _next_url(url, answer.headers)

    async def _commit(self, url: URL) -> None:
        sums = b"".join(self._sums[offset] for offset in sorted(self._sums))
        etag = f"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-{len(self._sums)}"
        try:
            await self._remote.ask(
                hdrs.METH_PUT,
                url.update_query({"digest": self.digest, "etag": etag}),
                headers={hdrs.CONTENT_TYPE: _BYTES},
                response_timeout_s=_COMMIT_TIMEOUT_S,
            )
        except RegistryNotFound as error:
            # A retry also gets 404 if the first try succeeded but its answer was lost.
            if not await self._is_in_registry():
                raise _UploadLost("the upload was lost") from error

    # ------------------------------------------------------------------ parts

    async def _send_parts(self, url: URL, group: asyncio.TaskGroup) -> URL:
        """Send all parts; return the URL for the commit."""
        size = self._sizes.upload_part(self.total)
        at_once = asyncio.Semaphore(_N_AT_ONCE)
        failures = offset = 0
        while offset < self.total:
            end = min(offset + size, self.total)
            try:
                url, storage = await self._patch(url, offset, end)
            except (aiohttp.ClientError, TimeoutError, RegistryError) as error:
                failures += 1
                await self._pause(error, failures)
                url, offset = await self._query_offset(url)
                continue
            if storage is not None:
                await at_once.acquire()
                group.create_task(self._put(storage, offset, end, at_once))
            failures, offset = 0, end
        return url

    async def _patch(self, url: URL, offset: int, end: int) -> tuple[URL, URL | None]:
        """Send a part; return the next part's URL, and the storage to send this part to, if any."""
        headers = {hdrs.CONTENT_RANGE: f"{offset}-{end - 1}", "X-Redirect-Uploads": "1"}
        async with self._open_request(hdrs.METH_PATCH, url, headers, offset, end) as response:
            storage = redirect_target(response)
            if storage is not None:
                self._sent[offset] = 0
            return _next_url(url, response.headers), storage

    async def _put(self, url: URL, offset: int, end: int, at_once: asyncio.Semaphore) -> None:
        """Send one part to the storage."""
        try:
            for failures in itertools.count(1):
                try:
                    async with self._open_request(hdrs.METH_PUT, url, {}, offset, end):
                        return
                except (aiohttp.ClientError, TimeoutError, RegistryError) as error:
                    await self._pause(error, failures)
        finally:
            at_once.release()

    async def _query_offset(self, url: URL) -> tuple[URL, int]:
        """Ask about an interrupted upload; return the next URL and the bytes that have arrived."""
        try:
            answer = await self._remote.ask(hdrs.METH_GET, url, redirects=RedirectPolicy.NONE)
        except (RegistryNotFound, RegistryRefused) as error:
            raise _UploadLost(f"the upload was lost: {error}") from error
        found = _RANGE.fullmatch(answer.headers.get(hdrs.RANGE, ""))
        # Registries also answer "0-0" if nothing has arrived.
        arrived = min(int(found[1]) + 1, self.total) if found and found[1] != "0" else 0
        self._sent = {0: arrived}
        return _next_url(url, answer.headers), arrived

    async def _pause(self, error: Exception, failures: int) -> None:
        """Sleep before the next try; raise the error if there is none."""
        if isinstance(error, RegistryNotFound) or (
            isinstance(error, RegistryRefused) and error.status == 416
        ):
            raise _UploadLost(f"the upload was lost: {error}") from error
        refused = isinstance(error, RegistryError) and not isinstance(error, RegistryRefused)
        if refused or (isinstance(error, RegistryRefused) and not is_retryable(error.status)):
            raise error
        if failures == _MAX_TRIES:
            raise RegistryError(f"max retries exceeded: {describe_error(error)}") from error
        log.info("%s: %s, trying again", self.digest[7:19], describe_error(error))
        await self._timers.sleep(retry_pause_s(error, failures))

    @asynccontextmanager
    async def _open_request(
        self, method: str, url: URL, headers: dict[str, str], offset: int, end: int
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send bytes [offset, end) and yield the answer, with a status below 400."""
        headers = {hdrs.CONTENT_TYPE: _BYTES, hdrs.CONTENT_LENGTH: str(end - offset), **headers}
        try:
            async with AsyncExitStack() as stack:
                async with self._timers.watch(STALL_S) as alive:
                    body = partial(self._body, offset, end, alive)
                    opened = self._remote.open(
                        method, url, headers=headers, body=body, redirects=RedirectPolicy.NONE
                    )
                    response = await stack.enter_async_context(opened)
                    await check(response)
                yield response
        except BaseException:
            self._sent.pop(offset, None)
            raise

    async def _body(self, offset: int, end: int, alive: Callable[[], None]) -> AsyncIterator[bytes]:
        md5 = hashlib.md5(usedforsecurity=False)

        def read(position: int) -> bytes:
            data = _read(self._path, position, min(_READ_BYTES, end - position))
            md5.update(data)
            return data

        position = offset
        while position < end:
            data = await self._disk.do(partial(read, position))
            yield data
            position += len(data)
            self._count_sent(len(data))
            self._sent[offset] = position - offset
            alive()
        self._sums[offset] = md5.digest()


def _read(path: Path, offset: int, n: int) -> bytes:
    """Read bytes in a thread; it opens the file itself, because the caller may be cancelled."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(n)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if not data:
        raise StoreError(f"{path} is shorter than its manifest says")
    return data


def _next_url(base: URL, headers: Mapping[str, str]) -> URL:
    location = headers.get("Docker-Upload-Location") or headers.get(hdrs.LOCATION)
    if not location:
        raise RegistryError("the registry does not return a URL for the upload")
    return join_url(base, location)
