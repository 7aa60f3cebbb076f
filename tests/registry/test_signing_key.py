"""The user's signing key."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_public_key,
)

from specd.errors import RegistryError
from specd.registry.authentication import load_signing_key


def public_key(text: str) -> Ed25519PublicKey:
    key = load_ssh_public_key(f"ssh-ed25519 {text}".encode())
    assert isinstance(key, Ed25519PublicKey)
    return key


@pytest.mark.contract("store.key")
def test_a_key_is_made_once_and_read_by_ssh(tmp_path: Path) -> None:
    folder = tmp_path / ".ollama"
    identity = load_signing_key(folder)
    assert load_signing_key(folder).public_key == identity.public_key
    private, public = folder / "id_ed25519", folder / "id_ed25519.pub"
    assert private.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert public.read_text() == f"ssh-ed25519 {identity.public_key}\n"
    assert {path.name for path in folder.iterdir()} == {"id_ed25519", "id_ed25519.pub"}


def test_a_signature_names_its_key(tmp_path: Path) -> None:
    key, signature = load_signing_key(tmp_path).sign("GET,https://x,").split(":")
    public_key(key).verify(base64.b64decode(signature), b"GET,https://x,")


@pytest.mark.parametrize("text", [b"", b"no key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_a_damaged_key_is_an_error_and_is_not_replaced(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "id_ed25519"
    path.write_bytes(text)
    with pytest.raises(RegistryError, match="cannot use the key"):
        load_signing_key(tmp_path)
    assert path.read_bytes() == text


def test_a_key_of_another_kind_is_an_error(tmp_path: Path) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (tmp_path / "id_ed25519").write_bytes(text)
    with pytest.raises(RegistryError, match="not an ed25519 key"):
        load_signing_key(tmp_path)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryError, match="cannot read the key"):
        load_signing_key(tmp_path / "file" / ".ollama")


def test_a_pipe_instead_of_the_key_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "id_ed25519")
    with pytest.raises(RegistryError, match="it is not a file"):
        load_signing_key(tmp_path)


def test_a_missing_public_key_is_written(tmp_path: Path) -> None:
    identity = load_signing_key(tmp_path)
    (tmp_path / "id_ed25519.pub").unlink()
    load_signing_key(tmp_path)
    assert (tmp_path / "id_ed25519.pub").read_text() == f"ssh-ed25519 {identity.public_key}\n"
