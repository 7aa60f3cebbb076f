"""Digests, the paths of their blobs, and the contents of small blobs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from specd.errors import StoreError
from specd.store import safe_files

T = TypeVar("T")

#: Limit for a layer that is read whole; generous, because MESSAGEs may hold images.
MAX_BYTES: Final = 256 * 2**20
#: Limit for a manifest: safetensors models have tens of thousands of layers.
MAX_MANIFEST_BYTES: Final = 32 * 2**20

_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


def path_of(root: Path, digest: str) -> Path:
    """Return the file of the blob `sha256:<64 hex digits>` below the store's root.

    Raises StoreError if the text is not a digest.
    """
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise StoreError(f"{digest!r} is not a digest")
    return root / "blobs" / f"sha256-{found[1].lower()}"


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def digest_of(path: Path) -> str | None:
    """Return the 64 hex digits in a blob's file name; None for a file that is not a blob.

    Like Ollama, this does not check the contents.
    """
    found = _DIGEST.fullmatch(path.name)
    return found[1].lower() if found is not None and path.parent.name == "blobs" else None


def modified_at(path: Path) -> datetime:
    """Return the modification time, aware, in local time.  Raises StoreError."""
    with safe_files.to_store_errors(f"read {path}"):
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).astimezone()


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    with safe_files.to_store_errors(f"read {path}"):
        return safe_files.read(path, max_bytes)


def read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8", "replace")


def read_json(path: Path, kind: type[T]) -> T:
    """Decode a JSON blob.  Raises StoreError if it cannot be read as `kind`."""
    try:
        return msgspec.json.decode(read_bytes(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from error
