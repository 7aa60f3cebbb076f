"""The user's signing key, shared with Ollama: `$HOME/.ollama/id_ed25519`."""

from __future__ import annotations

import base64
import contextlib
import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from specd.errors import RegistryError
from specd.store import atomic_files, safe_open

FILE: Final = "id_ed25519"
_MAX_BYTES: Final = 2**20


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
        key = load_ssh_private_key(safe_open.read(path, _MAX_BYTES), password=None)
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
        with atomic_files.atomic_write(public) as part:
            part.write_text(f"ssh-ed25519 {identity.public_key}\n", encoding="ascii")
            part.chmod(0o644)
    atomic_files.remove_leftovers(path.parent, f".{FILE}*")


def _generate_key(path: Path) -> None:
    """Create a key in OpenSSH's format, unless another process creates one meanwhile."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    staged = path.with_name(f".{FILE}-{secrets.token_hex(8)}")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    try:
        staged.touch(mode=0o600, exist_ok=False)
        staged.write_bytes(private)
        atomic_files.sync(staged)
        # Unlike a rename, a link never replaces an existing key.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(staged)
            atomic_files.sync(path.parent)
    finally:
        staged.unlink(missing_ok=True)
