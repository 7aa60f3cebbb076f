"""A registry's 401: where a token is to be had, and what the request for one looks like."""

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
    """scope: parts with spaces between."""

    realm: str
    service: str = ""
    scope: str = ""

    def token_url(self, asked: URL, *, now_s: float | None = None, nonce: str = "") -> URL:
        """Where the token is to be had; never quoted anew, because its very text is signed.

        asked: what was answered 401.  A token is asked for at no other host, or one registry could
        have requests signed that another believes.
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
        fields.sort(key=lambda field: field[0])  # as Go encodes them
        return URL(realm._replace(query=urlencode(fields), fragment="").geturl(), encoded=True)


def parse_challenge(header: str) -> Challenge | None:
    """`Bearer realm="…",service="…",scope="…"`; None for any other scheme."""
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() != "bearer":
        return None
    said = {
        found[1].lower(): re.sub(r"\\(.)", r"\1", found[2]) if found[2] is not None else found[3]
        for found in _PARAMETER.finditer(rest)
    }
    if not said.get("realm"):
        return None
    return Challenge(
        realm=said["realm"], service=said.get("service", ""), scope=said.get("scope", "")
    )


def text_to_sign(url: URL) -> str:
    return f"GET,{url},{_NO_BODY}"
