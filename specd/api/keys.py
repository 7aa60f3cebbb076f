"""API keys (SPECD_API_KEYS): a request without a valid key is answered 401.

Clients send a key as `Authorization: Bearer KEY` (OpenAI, Ollama) or as `x-api-key` (Anthropic).
Keys are never logged, and comparing them takes the same time for every wrong key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from specd.api.anthropic.errors import error_reply as anthropic_reply
from specd.api.error_handling import ErrorReply, Unauthorized
from specd.api.ollama.errors import error_reply as ollama_reply
from specd.api.openai.errors import error_reply as openai_reply

#: Paths that need no key: they only show that specd runs.  The `ollama` command begins with
#: `HEAD /`, and monitoring has no key.
PUBLIC_PATHS: Final = frozenset({"/", "/health", "/v1/health", "/ready"})
_X_API_KEY: Final = "X-Api-Key"
_BEARER: Final = "bearer"
_SALT_BYTES: Final = 16
#: Hex digits of a key's identifier: enough to tell keys apart, too few to guess a key.
_IDENTITY_DIGITS: Final = 8
#: Error form by path prefix; all other paths, `*` and the empty one too, have Ollama's.
_REPLIES: Final[Mapping[str, ErrorReply]] = {
    "/v1/messages": anthropic_reply,
    "/v1/": openai_reply,
}


class Keys:
    """The valid API keys; without any, no key is required.

    It stores digests only.  Use it in the event loop's thread.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._salt = secrets.token_bytes(_SALT_BYTES)
        self._digests: tuple[bytes, ...] = ()
        self.replace(keys)

    def replace(self, keys: Iterable[str]) -> None:
        """Replace all keys; running answers continue."""
        self._digests = tuple(dict.fromkeys(map(_digest, keys)))

    def is_authorized(self, request: web.BaseRequest) -> bool:
        """Return whether no key is required, or a valid one was sent."""
        return not self._digests or self._matching_digest(request) is not None

    def client(self, request: web.BaseRequest) -> str:
        """Return an identifier of the key for the log, like `key=3f2a81c0`; "" without a valid key.

        It is the same for one key until the daemon restarts, and does not reveal the key.
        """
        known = self._matching_digest(request)
        if known is None:
            return ""
        shown = hashlib.blake2b(known, key=self._salt, digest_size=_IDENTITY_DIGITS // 2)
        return f"key={shown.hexdigest()}"

    def _matching_digest(self, request: web.BaseRequest) -> bytes | None:
        """Return the digest of the key that was sent; compare with all, for a constant time."""
        found: bytes | None = None
        for sent in map(_digest, _sent_keys(request)):
            for known in self._digests:
                if hmac.compare_digest(sent, known):
                    found = known
        return found


def _sent_keys(request: web.BaseRequest) -> Iterator[str]:
    yield from request.headers.getall(_X_API_KEY, ())
    for value in request.headers.getall(hdrs.AUTHORIZATION, ()):
        scheme, _, key = value.strip().partition(" ")
        if scheme.lower() == _BEARER:
            yield key.strip()


def _digest(key: str) -> bytes:
    # Bytes of a header that are not UTF-8 arrive as surrogates.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def require_key(keys: Keys) -> Middleware:
    """Return a middleware that answers 401 in the dialect's form without a valid key.

    Preflight requests of browsers are answered by an earlier middleware.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _is_public(request) or keys.is_authorized(request):
            return await handler(request)
        return _refusal(request.path)

    return check


def _is_public(request: web.Request) -> bool:
    return request.path in PUBLIC_PATHS and request.method in {hdrs.METH_GET, hdrs.METH_HEAD}


def _refusal(path: str) -> web.Response:
    fitting = (reply for prefix, reply in _REPLIES.items() if (path + "/").startswith(prefix))
    reply = next(fitting, ollama_reply)
    response = reply(Unauthorized())
    response.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    return response
