"""The authentication challenge in a registry's 401, and the token request that answers it."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from yarl import URL

from specd.errors import RegistryError

_PARAMETER: Final = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_NO_BODY: Final = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A `Bearer` challenge.

    scope: parts separated by spaces.
    """

    realm: str
    service: str = ""
    scope: str = ""

    def token_url(self, asked: URL, *, now_s: float | None = None, nonce: str = "") -> URL:
        """Return the URL of the token request, already encoded, because its exact text is signed.

        asked: the URL that was answered with 401.  Raises RegistryError if the token server is
        another host: a registry could otherwise obtain signatures that are valid elsewhere.
        """
        realm = urlsplit(self.realm)
        host = asked.raw_authority
        if realm.scheme not in {"http", "https"} or realm.netloc.lower() != host.lower():
            raise RegistryError(
                f'realm host "{realm.netloc}" does not match original host "{host}"'
            )
        stamp = int(time.time() if now_s is None else now_s)
        fields = parse_qsl(realm.query, keep_blank_values=True)
        fields += [("service", self.service)]
        fields += [("scope", part) for part in self.scope.split(" ")]
        fields += [("ts", str(stamp)), ("nonce", nonce or secrets.token_urlsafe(16))]
        fields.sort(key=lambda field: field[0])  # Go's order
        return URL(realm._replace(query=urlencode(fields), fragment="").geturl(), encoded=True)


def parse_challenge(header: str) -> Challenge | None:
    """Parse `Bearer realm="…",service="…",scope="…"`; return None for any other scheme."""
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() != "bearer":
        return None
    parameters = {
        found[1].lower(): re.sub(r"\\(.)", r"\1", found[2]) if found[2] is not None else found[3]
        for found in _PARAMETER.finditer(rest)
    }
    if not parameters.get("realm"):
        return None
    return Challenge(
        realm=parameters["realm"],
        service=parameters.get("service", ""),
        scope=parameters.get("scope", ""),
    )


def text_to_sign(url: URL) -> str:
    """Return what the user's key signs for a token request without a body."""
    return f"GET,{url},{_NO_BODY}"
