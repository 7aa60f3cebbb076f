"""Talks HTTP to the daemon: the native API, whole answers and NDJSON streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import hdrs

from specd.errors import SpecdError
from specd.settings import Settings

Json = dict[str, Any]

# One line of a stream may hold a whole context as token ids.
_MAX_LINE_BYTES = 2**24
_CONNECT_S = 5.0


class DaemonUnreachable(SpecdError):
    pass


class DaemonRefused(SpecdError):
    """status: HTTP's; 200 where the error came in mid-stream."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class Client:
    """One session with the daemon at `url`; an async context manager.

    Methods raise DaemonUnreachable where nobody answers and DaemonRefused with the daemon's words.
    """

    def __init__(self, url: str, key: str = "") -> None:
        """key: sent with every request, where the daemon asks for one."""
        self._url = url
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return self._url

    async def __aenter__(self) -> Self:
        # A model may take minutes to load: only the connection itself is timed.
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

    async def act(self, method: str, path: str, body: Mapping[str, object]) -> None:
        """For what is answered by its status alone."""
        await self._bytes(method, path, body)

    async def stream(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[Json, None]:
        """The objects of an NDJSON answer; the last has `done`.  Closing it stops the answer."""
        assert self._session is not None
        try:
            async with self._session.post(f"{self._url}{path}", json=body) as response:
                await _check(response)
                async for line in response.content:
                    part = _object(line)
                    if error := part.get("error"):
                        raise DaemonRefused(response.status, str(error))
                    yield part
                    if part.get("done"):
                        return
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error
        raise DaemonRefused(200, "the daemon closed the connection in mid-answer")

    async def progress(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[Json, None]:
        """The objects of a pull, a push or a create; the last one's status is `success`."""
        assert self._session is not None
        status = ""
        try:
            async with self._session.post(f"{self._url}{path}", json=body) as response:
                await _check(response)
                async for line in response.content:
                    part = _object(line)
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
        """Send a blob, which the daemon checks."""
        assert self._session is not None
        try:
            url = f"{self._url}/api/blobs/{digest}"
            async with self._session.post(url, data=chunks) as response:
                await _check(response)
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error

    async def _whole(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
        return _object(await self._bytes(method, path, body))

    async def _bytes(self, method: str, path: str, body: Mapping[str, object] | None) -> bytes:
        assert self._session is not None
        try:
            url = f"{self._url}{path}"
            async with self._session.request(method, url, json=body) as response:
                await _check(response)
                return await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> DaemonUnreachable:
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return DaemonUnreachable(
                f"no daemon answers at {self._url}: start one with `specd serve`,"
                " or name another with OLLAMA_HOST"
            )
        return DaemonUnreachable(f"the connection to {self._url} failed: {error}")


def daemon_client() -> Client:
    """A client of the daemon that OLLAMA_HOST names, with the first of SPECD_API_KEYS."""
    settings = Settings()
    key = next((key.get_secret_value() for key in settings.api_keys), "")
    return Client(settings.host.url, key)


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise what a status of 400 and above says, in JSON or in bare text."""
    if response.status < 400:
        return
    text = (await response.text(errors="replace")).strip()
    try:
        said = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        said = text
    if isinstance(said, dict):
        said = said.get("message", said)
    if response.status == 401:
        said = f"{said}; set SPECD_API_KEYS to one that the daemon knows"
    raise DaemonRefused(response.status, str(said) or f"HTTP status {response.status}")


def _object(text: bytes) -> Json:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DaemonRefused(200, "the answer is not JSON: is this the daemon?") from error
    if not isinstance(value, dict):
        raise DaemonRefused(200, "the answer is not a JSON object: is this the daemon?")
    return value
