"""Authentication at a registry: the challenge in its 401, and the user's key that signs the answer.

The key is Ollama's, `$HOME/.ollama/id_ed25519`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)
from yarl import URL

from specd.errors import RegistryError
from specd.store import safe_files

FILE: Final = "id_ed25519"
_MAX_BYTES: Final = 2**20
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


# --------------------------------------------------------------------------- the key


class SigningKey:
    """An ed25519 key that signs token requests.

    public_key: as in an `authorized_keys` line, without type and comment.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        self.public_key = line.split()[1].decode()

    def sign(self, text: str) -> str:
        """Return `<public key>:<signature>` for the `Authorization` header."""
        signature = base64.b64encode(self._key.sign(text.encode())).decode()
        return f"{self.public_key}:{signature}"


def default_folder() -> Path | None:
    """Return the folder of Ollama's key; None for a user without a home folder."""
    try:
        return Path.home() / ".ollama"
    except RuntimeError:
        return None


def load_signing_key(folder: Path) -> SigningKey:
    """Return the key in that folder; create it if it is missing.  Blocks; raises RegistryError."""
    path = folder / FILE
    try:
        if not path.exists():
            _generate_key(path)
        key = load_ssh_private_key(safe_files.read(path, _MAX_BYTES), password=None)
    except OSError as error:
        raise RegistryError(f"cannot read the key {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RegistryError(f"cannot use the key {path}: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RegistryError(f"cannot use the key {path}: it is not an ed25519 key")
    identity = SigningKey(key)
    with contextlib.suppress(OSError):  # specd does not read the public key
        _write_public_key(path, identity)
    return identity


def _write_public_key(path: Path, identity: SigningKey) -> None:
    """Write the public key if it is missing, and remove leftovers of killed processes."""
    public = path.with_name(f"{FILE}.pub")
    if not public.exists():
        with safe_files.atomic_write(public) as part:
            part.write_text(f"ssh-ed25519 {identity.public_key}\n", encoding="ascii")
            part.chmod(0o644)
    safe_files.remove_leftovers(path.parent, f".{FILE}*")


def _generate_key(path: Path) -> None:
    """Create a key in OpenSSH's format, unless another process creates one meanwhile."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    staged = path.with_name(f".{FILE}-{secrets.token_hex(8)}")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    try:
        staged.touch(mode=0o600, exist_ok=False)
        staged.write_bytes(private)
        safe_files.sync(staged)
        # Unlike a rename, a link never replaces an existing key.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(staged)
            safe_files.sync(path.parent)
    finally:
        staged.unlink(missing_ok=True)
