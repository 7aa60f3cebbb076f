"""Call the daemon's native API over HTTP: whole answers and NDJSON streams.

For a command with a single request, sync_client.py starts faster.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self

import aiohttp
from aiohttp import hdrs

from specd.cli.sync_client import (
    DaemonRefused,
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

    async def __aenter__(self) -> Self:
        # A model may take minutes to load, so only connecting has a timeout.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            read_bufsize=_MAX_LINE_BYTES,
            headers={hdrs.AUTHORIZATION: f"Bearer {self._key}"} if self._key else None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def get(self, path: str) -> Json:
        async with self._request("GET", path) as response:
            return parse_object(await response.read())

    async def post(self, path: str, body: Mapping[str, object]) -> Json:
        async with self._request("POST", path, json=body) as response:
            return parse_object(await response.read())

    async def stream(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[Json, None]:
        """Yield the objects of an NDJSON answer; the last has `done`.

        Closing the generator stops the answer.
        """
        async with aclosing(self._objects(path, body)) as parts:
            async for part in parts:
                yield part
                if part.get("done"):
                    return
        raise DaemonRefused(200, "the daemon closed the connection in mid-answer")

    async def progress(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[Json, None]:
        """Yield the objects of a pull, a push or a create; the last one's status is `success`."""
        part: Json = {}
        async with aclosing(self._objects(path, body)) as parts:
            async for part in parts:
                yield part
        if part.get("status") != "success":
            raise DaemonRefused(200, "the daemon closed the connection before the end")

    async def has_blob(self, digest: str) -> bool:
        async with self._request("HEAD", f"/api/blobs/{digest}", may_fail=True) as response:
            return response.status == 200

    async def upload(self, digest: str, chunks: AsyncIterable[bytes]) -> None:
        """Upload a blob; the daemon checks its digest."""
        async with self._request("POST", f"/api/blobs/{digest}", data=chunks):
            pass

    async def _objects(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[Json, None]:
        """Yield the objects of an NDJSON answer.  Raises DaemonRefused for one with `error`."""
        async with self._request("POST", path, json=body) as response:
            async for line in response.content:
                part = parse_object(line)
                if error := part.get("error"):
                    raise DaemonRefused(response.status, str(error))
                yield part

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, *, may_fail: bool = False, **content: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Send a request.  may_fail: an error status raises nothing."""
        assert self._session is not None
        try:
            async with self._session.request(method, f"{self._url}{path}", **content) as response:
                if response.status >= 400 and not may_fail:
                    raise response_error(response.status, await response.text(errors="replace"))
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise unreachable_error(self._url) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise connection_error(self._url, error) from error


def daemon_client() -> Client:
    """Return a client for the daemon at OLLAMA_HOST, with the first key of SPECD_API_KEYS."""
    address = daemon_address()
    return Client(address.url, address.key)
