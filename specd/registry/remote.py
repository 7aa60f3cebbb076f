"""Requests to one model's repository at its registry: tokens, redirects, retries and errors.

A token is sent only to the registry's own host, never to storage on another host.
"""

from __future__ import annotations

import asyncio
import json
import logging
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

import specd
from specd.errors import RegistryError, RegistryUnreachable
from specd.registry.authentication import Challenge, SigningKey, parse_challenge, text_to_sign
from specd.registry.sessions import Sessions, is_from_private_peer, is_private_host, proxy_for
from specd.registry.transfer_context import TransferTimers
from specd.store import Name

log = logging.getLogger(__name__)

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
# Hugging Face serves GGUF repositories to user agents that begin with "ollama/".
USER_AGENT: Final = (
    f"ollama/{specd.OLLAMA_API_VERSION}"
    f" ({_ARCHITECTURES.get(platform.machine(), platform.machine())} {platform.system().lower()})"
    f" specd/{specd.__version__}"
)

_MAX_REDIRECTS: Final = 10
_MAX_ANSWER_BYTES: Final = 4 * 2**20
_MAX_ERROR_BYTES: Final = 4096
#: No total timeout: callers of `open` set their own.
_CONNECTED: Final = aiohttp.ClientTimeout(total=None, sock_connect=30)
#: For a small answer: maximum time until the next byte.
RESPONSE_TIMEOUT_S: Final = 60.0
#: For a small answer: maximum time for its body, in addition.
BODY_TIMEOUT_S: Final = 180.0
_MAX_TRIES: Final = 3
_LONGEST_PAUSE_S: Final = 60.0
_NO_TLS: Final = "; a registry over plain HTTP needs `insecure`"

Body = Callable[[], AsyncIterator[bytes]]


class RegistryNotFound(RegistryError):
    """The registry answered with 404."""


class RegistryRefused(RegistryError):
    """The registry answered with another error status.

    status: HTTP status.  pause_s: its `Retry-After`, seconds.
    """

    def __init__(self, status: int, message: str, pause_s: float = 0.0) -> None:
        self.status = status
        self.pause_s = pause_s
        super().__init__(message)


class RedirectPolicy(Enum):
    """Which redirects `Remote` follows; it returns any other one as the answer."""

    FOLLOW = auto()
    SAME_HOST = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAnswer:
    """A whole answer.

    headers: looked up ignoring case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class Remote:
    """A model's repository at a registry.

    Methods raise RegistryNotFound, RegistryRefused, RegistryUnreachable or another RegistryError.

    identity: returns the signing key, None without one.  insecure: use plain HTTP.
    """

    def __init__(
        self,
        http: Sessions,
        name: Name,
        *,
        insecure: bool,
        identity: Callable[[], Awaitable[SigningKey | None]],
        timers: TransferTimers,
    ) -> None:
        scheme = "http" if insecure else name.scheme
        self.url = URL(f"{scheme}://{name.host}") / "v2" / name.namespace / name.model
        self._http = http
        self._identity = identity
        self._timers = timers
        self._token = ""
        self._is_public = False  # set by the first answer
        self._authorizing = asyncio.Lock()

    async def ask(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        redirects: RedirectPolicy = RedirectPolicy.FOLLOW,
        response_timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> RegistryAnswer:
        """Return a whole, small answer with a status below 400; retry after temporary errors."""
        timeout = _small_answer_timeout(response_timeout_s)
        for attempt in range(1, _MAX_TRIES + 1):
            try:
                opened = self.open(
                    method, url, headers=headers, body=body, redirects=redirects, timeout=timeout
                )
                async with (
                    self._timers.watch(response_timeout_s + BODY_TIMEOUT_S),
                    opened as response,
                ):
                    await check(response)
                    data = await read_at_most(response, _MAX_ANSWER_BYTES)
                    return RegistryAnswer(
                        status=response.status, headers=response.headers, body=data
                    )
            except RegistryRefused as error:
                if not is_retryable(error.status) or attempt == _MAX_TRIES:
                    raise
                pause_s = retry_pause_s(error, attempt)
            except (aiohttp.ClientError, TimeoutError) as error:
                unreachable = isinstance(error, aiohttp.ClientConnectorError)
                if unreachable or attempt == _MAX_TRIES:
                    hint = _NO_TLS if isinstance(error, aiohttp.ClientSSLError) else ""
                    raise RegistryUnreachable(
                        f"{method} {url}: {describe_error(error)}{hint}"
                    ) from error
                pause_s = retry_pause_s(error, attempt)
            await self._timers.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | bytes | None = None,
        redirects: RedirectPolicy = RedirectPolicy.FOLLOW,
        timeout: aiohttp.ClientTimeout = _CONNECTED,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer of any status, before its body is read; also raises ClientError.

        The caller sets a timeout, because other requests may wait for the same token.
        """
        is_foreign = False
        for _ in range(_MAX_REDIRECTS + 1):
            sent = self._send(method, url, headers or {}, body, timeout, is_foreign=is_foreign)
            async with await sent as response:
                target = redirect_target(response)
                is_local = is_in_local_network(url, response)
                is_foreign = is_foreign or not is_local
                self._is_public |= url.host == self.url.host and not is_local
                if target is not None:
                    check_redirect(url, target, is_local=is_local and not is_foreign)
                if target is None or self._is_redirect_refused(redirects, target):
                    yield response
                    return
            url = target
        raise RegistryError(f"more than {_MAX_REDIRECTS} redirects, the last to {url.host}")

    async def _send(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: Body | bytes | None,
        timeout: aiohttp.ClientTimeout,
        *,
        is_foreign: bool,
    ) -> aiohttp.ClientResponse:
        """Send one request, and send it again with a new token after a 401 with a challenge.

        is_foreign: a server on the internet has redirected here.
        """
        own, http = not self._is_other_origin(url), self._session(url, is_foreign=is_foreign)
        for attempt in (1, 2):
            token = self._token if own else ""
            bearer = [(hdrs.AUTHORIZATION, f"Bearer {token}")] if token else []
            response = await http.request(
                method,
                url,
                headers=[*headers.items(), *bearer],
                data=body() if callable(body) else body,
                allow_redirects=False,
                timeout=timeout,
                proxy=proxy_for(url),
            )
            challenge = parse_challenge(response.headers.get(hdrs.WWW_AUTHENTICATE, ""))
            if response.status != 401 or challenge is None or not own or attempt == 2:
                return response
            response.release()
            async with self._authorizing:
                if self._token == token:  # no other request has renewed it meanwhile
                    self._token = await self._new_token(challenge, url)
        raise AssertionError("the second answer is returned")

    def _session(self, url: URL, *, is_foreign: bool) -> aiohttp.ClientSession:
        """Return the session for a URL.

        Raises RegistryError for an invalid host, and for a private host if the registry is public.
        """
        _check_host(url)
        if not (is_foreign or self._is_public):
            return self._http.any_host
        if is_private_host(url.host or ""):
            raise RegistryError(f"{url.host} is not an address on the internet")
        return self._http.any_host if proxy_for(url) else self._http.public_only

    def _is_redirect_refused(self, redirects: RedirectPolicy, target: URL) -> bool:
        match redirects:
            case RedirectPolicy.FOLLOW:
                return False
            case RedirectPolicy.SAME_HOST:
                return self._is_other_origin(target)
            case RedirectPolicy.NONE:
                return True

    def _is_other_origin(self, url: URL) -> bool:
        """Return whether the URL is on another host, or loses the registry's encryption."""
        return url.host != self.url.host or (self.url.scheme == "https" and url.scheme == "http")

    async def _new_token(self, challenge: Challenge, asked: URL) -> str:
        """Return a token, asked for with the user's signature first, then without."""
        url = challenge.token_url(asked)
        asking: list[dict[str, str]] = [{}]
        if identity := await self._identity():
            asking.insert(0, {hdrs.AUTHORIZATION: identity.sign(text_to_sign(url))})
        refusals: list[RegistryRefused] = []
        for headers in asking:
            try:
                async with self._session(url, is_foreign=False).get(
                    url,
                    headers=headers,
                    allow_redirects=False,
                    timeout=_small_answer_timeout(RESPONSE_TIMEOUT_S),
                    proxy=proxy_for(url),
                ) as response:
                    await check(response)
                    return _parse_token(await read_at_most(response, _MAX_ANSWER_BYTES))
            except RegistryNotFound as error:
                refusals.append(RegistryRefused(404, f"404: no token server: {error}"))
            except RegistryRefused as error:
                refusals.append(error)
        raise refusals[0]


def _small_answer_timeout(response_timeout_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=response_timeout_s)


def redirect_target(response: aiohttp.ClientResponse) -> URL | None:
    """Return a redirect's target, unmodified because it may be signed; None without one."""
    location = response.headers.get(hdrs.LOCATION)
    if response.status not in {301, 302, 303, 307, 308} or not location:
        return None
    return join_url(response.url, location)


def _check_host(url: URL) -> None:
    """Raise RegistryError for an invalid host name, for which a socket raises UnicodeError."""
    host = url.host or ""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise RegistryError(
            f"{host[:100]} is not a valid host name: a part of it is empty or longer than 63"
            " characters"
        ) from error


def join_url(base: URL, location: str) -> URL:
    try:
        target = URL(location, encoded=True)
        return target if target.absolute else base.join(target)
    except ValueError as error:
        raise RegistryError(f"a redirect to an invalid URL: {location[:100]!r}") from error


def is_in_local_network(url: URL, response: aiohttp.ClientResponse) -> bool:
    """Return whether the server is in this machine's network, by its name or address.

    Behind a proxy only the name is known.
    """
    return is_private_host(url.host or "") or (
        proxy_for(url) is None and is_from_private_peer(response)
    )


def check_redirect(source: URL, target: URL, *, is_local: bool) -> None:
    """Raise RegistryError for a redirect that is not allowed.

    Not allowed are other protocols, a loss of encryption on the internet, and redirects from the
    internet into this machine's network, whose devices may trust requests from this machine.
    is_local: the source itself is in that network.
    """
    into = is_private_host(target.host or "")
    bares = source.scheme == "https" and target.scheme == "http" and not into
    if target.scheme not in {"http", "https"} or bares:
        raise RegistryError(f"a redirect from {source.scheme} to {target.scheme} is not followed")
    if into and not is_local:
        raise RegistryError(
            f"a redirect from {source.host} to {target.host}, which is not an address on the"
            " internet, is not followed"
        )


async def check(response: aiohttp.ClientResponse) -> None:
    """Raise RegistryNotFound or RegistryRefused (`403: body`) for a status from 400."""
    if response.status < 400:
        return
    text = (await read_at_most(response, _MAX_ERROR_BYTES)).decode("utf-8", "replace").strip()
    if response.status == 404:
        raise RegistryNotFound("file does not exist")
    if response.status == 401:
        raise RegistryRefused(401, f"unauthorized: access denied: {text}".removesuffix(": "))
    message = f"{response.status}: {text or response.reason or ''}".removesuffix(": ")
    raise RegistryRefused(
        response.status, message, _parse_retry_after(response.headers.get(hdrs.RETRY_AFTER, ""))
    )


async def read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body, at most its first `limit` bytes."""
    try:
        return await response.content.readexactly(limit)
    except asyncio.IncompleteReadError as error:
        return error.partial


def is_retryable(status: int, *others: int) -> bool:
    """Return whether the same request may succeed a little later."""
    return status >= 500 or status in {408, 429, *others}


def retry_pause_s(error: BaseException, n_failures: int) -> float:
    """Return the pause before the next try: 1, 2, 4, … seconds, or longer by `Retry-After`."""
    asked_s = error.pause_s if isinstance(error, RegistryRefused) else 0.0
    return max(asked_s, 2.0 ** (n_failures - 1))


def describe_error(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _parse_retry_after(retry_after: str) -> float:
    """Return the pause in seconds, limited; 0 for a date, which is not supported."""
    return min(float(retry_after), _LONGEST_PAUSE_S) if retry_after.isdecimal() else 0.0


def _parse_token(body: bytes) -> str:
    """Return `token` or, as some of Docker's token servers send it, `access_token`."""
    try:
        answer = json.loads(body)
        token = answer.get("token") or answer.get("access_token")
    except (ValueError, AttributeError, RecursionError) as error:
        raise RegistryError("the token server's answer is not JSON") from error
    if not isinstance(token, str) or not token or not token.isprintable():
        raise RegistryError("the token server's answer holds no token")
    return token
