"""SPECD_API_KEYS: who has one may call; what is asked without a key is answered 401.

A key comes as `Authorization: Bearer KEY` (OpenAI's and Ollama's clients) or as `x-api-key`
(Anthropic's).  Nothing here logs one, or says in what it differs from the right one.
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
from specd.api.error_handling import ErrorReply
from specd.api.errors import Unauthorized
from specd.api.ollama.errors import error_reply as ollama_reply
from specd.api.openai.errors import error_reply as openai_reply

#: What says no more than that specd is here.  The `ollama` command begins with `HEAD /`, and who
#: watches a service has no key.
PUBLIC_PATHS: Final = frozenset({"/", "/health", "/v1/health", "/ready"})
_X_API_KEY: Final = "X-Api-Key"
_BEARER: Final = "bearer"
_SALT_BYTES: Final = 16
#: Of an identity: enough to tell a household's keys apart, too little to find one by trying.
_IDENTITY_DIGITS: Final = 8
#: Of a path that begins so; Ollama's is that of all others, `*` and the empty one too.
_REPLIES: Final[Mapping[str, ErrorReply]] = {
    "/v1/messages": anthropic_reply,
    "/v1/": openai_reply,
}


class Keys:
    """The keys that open the API; none at all opens it to everybody.

    Only their digests are kept.  For the thread of the event loop.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._salt = secrets.token_bytes(_SALT_BYTES)
        self._digests: tuple[bytes, ...] = ()
        self.replace(keys)

    def replace(self, keys: Iterable[str]) -> None:
        """From now on these and no others; answers that are under way go on."""
        self._digests = tuple(dict.fromkeys(map(_digest, keys)))

    def is_authorized(self, request: web.BaseRequest) -> bool:
        """Whether there are no keys, or one of them was sent."""
        return not self._digests or self._matching_digest(request) is not None

    def client(self, request: web.BaseRequest) -> str:
        """Who calls, for a line in the log: `key=3f2a81c0`, "" where that cannot be said.

        The same for one key as long as the daemon runs, and of no use to whoever reads the log.
        """
        known = self._matching_digest(request)
        if known is None:
            return ""
        shown = hashlib.blake2b(known, key=self._salt, digest_size=_IDENTITY_DIGITS // 2)
        return f"key={shown.hexdigest()}"

    def _matching_digest(self, request: web.BaseRequest) -> bytes | None:
        """The digest of the key that was sent; every one is compared, so all take as long."""
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
    # A header's bytes that are no UTF-8 come as surrogates.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def require_key(keys: Keys) -> Middleware:
    """401 in the words of the path's dialect.  A browser's preflight was answered before this."""

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
