"""Digests, where their blobs lie, and the small ones' contents."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from specd.errors import StoreError
from specd.store import safe_open

T = TypeVar("T")

#: Of a small layer, far above what it takes: MESSAGEs may hold images.
MAX_BYTES: Final = 256 * 2**20
#: Of a manifest: ten thousands of layers, as models of safetensors have them.
MAX_MANIFEST_BYTES: Final = 32 * 2**20

_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


def path_of(root: Path, digest: str) -> Path:
    """The file of `sha256:<64 hex digits>` below the store's root; StoreError for another text."""
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise StoreError(f"{digest!r} is not a digest")
    return root / "blobs" / f"sha256-{found[1].lower()}"


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def digest_of(path: Path) -> str | None:
    """64 hex digits where the file is a blob of a store; its name is believed, as Ollama does."""
    found = _DIGEST.fullmatch(path.name)
    return found[1].lower() if found is not None and path.parent.name == "blobs" else None


def modified_at(path: Path) -> datetime:
    """Aware, in local time; raises StoreError for a missing file."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).astimezone()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    try:
        return safe_open.read(path, max_bytes)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8", "replace")


def read_json(path: Path, kind: type[T]) -> T:
    """Decode a blob of JSON; raises StoreError where it is not of that type."""
    try:
        return msgspec.json.decode(read_bytes(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from error
