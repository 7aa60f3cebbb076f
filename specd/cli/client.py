"""Call the daemon's native API over HTTP: whole answers and NDJSON streams.

For a command with a single request, sync_client.py starts faster.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import hdrs

from specd.cli.responses import (
    DaemonRefused,
    DaemonUnreachable,
    Json,
    connection_error,
    parse_object,
    response_error,
    unreachable_error,
)
from specd.daemon_address import daemon_address

# One line of a stream can contain a whole context as token ids.
_MAX_LINE_BYTES = 2**24
_CONNECT_S = 5.0


class Client:
    """An HTTP session with the daemon at `url`; an async context manager.

    Methods raise DaemonUnreachable if no daemon listens, and DaemonRefused with the daemon's error.
    """

    def __init__(self, url: str, key: str = "") -> None:
        """Store the address.  key: the API key to send with every request, "" for none."""
        self._url = url
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return self._url

    async def __aenter__(self) -> Self:
        # A model may take minutes to load, so only connecting has a timeout.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            read_bufsize=_MAX_LINE_BYTES,
            headers={hdrs.AUTHORIZATION: f"Bearer {self._key}"} if self._key else None,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def get(self, path: str) -> Json:
        return await self._whole("GET", path, None)

    async def post(self, path: str, body: Mapping[str, object]) -> Json:
        return await self._whole("POST", path, body)

    async def stream(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[Json, None]:
        """Yield the objects of an NDJSON answer; the last has `done`.

        Closing the generator stops the answer.
        """
        assert self._session is not None
        try:
            async with self._session.post(f"{self._url}{path}", json=body) as response:
                await _check(response)
                async for line in response.content:
                    part = parse_object(line)
                    if error := part.get("error"):
                        raise DaemonRefused(response.status, str(error))
                    yield part
                    if part.get("done"):
                        return
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error
        raise DaemonRefused(200, "the daemon closed the connection in mid-answer")

    async def progress(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[Json, None]:
        """Yield the objects of a pull, a push or a create; the last one's status is `success`."""
        assert self._session is not None
        status = ""
        try:
            async with self._session.post(f"{self._url}{path}", json=body) as response:
                await _check(response)
                async for line in response.content:
                    part = parse_object(line)
                    if error := part.get("error"):
                        raise DaemonRefused(response.status, str(error))
                    status = part.get("status", "")
                    yield part
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error
        if status != "success":
            raise DaemonRefused(200, "the daemon closed the connection before the end")

    async def has_blob(self, digest: str) -> bool:
        assert self._session is not None
        try:
            async with self._session.head(f"{self._url}/api/blobs/{digest}") as response:
                return response.status == 200
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error

    async def upload(self, digest: str, chunks: AsyncIterable[bytes]) -> None:
        """Upload a blob; the daemon checks its digest."""
        assert self._session is not None
        try:
            url = f"{self._url}/api/blobs/{digest}"
            async with self._session.post(url, data=chunks) as response:
                await _check(response)
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error

    async def _whole(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
        assert self._session is not None
        try:
            url = f"{self._url}{path}"
            async with self._session.request(method, url, json=body) as response:
                await _check(response)
                return parse_object(await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> DaemonUnreachable:
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return unreachable_error(self._url)
        return connection_error(self._url, error)


def daemon_client() -> Client:
    """Return a client for the daemon at OLLAMA_HOST, with the first key of SPECD_API_KEYS."""
    address = daemon_address()
    return Client(address.url, address.key)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        raise response_error(response.status, await response.text(errors="replace"))
