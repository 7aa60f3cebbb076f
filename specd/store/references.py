"""The digests of the blobs that a store's manifests name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from specd.errors import StoreError
from specd.store import atomic_files
from specd.store import name as names
from specd.store.manifest import Manifest, read_manifest


def manifest_files(manifests: Path) -> Iterator[Path]:
    """Yield every manifest file, that is each file whose path is a valid model name.

    Raises StoreError if a folder cannot be read, because its manifests may name any blob.
    """
    folders = [manifests]
    with atomic_files.to_store_errors(f"read {manifests}"):
        for _ in range(3):
            folders = [entry for each in folders for entry in each.iterdir() if entry.is_dir()]
        files = [entry for each in folders for entry in each.iterdir() if entry.is_file()]
    for file in files:
        if names.from_parts(file.relative_to(manifests).parts) is not None:
            yield file


def digests_of(manifest: Manifest) -> frozenset[str]:
    """Return the digests of the layers and the config, each "sha256:<64 hex digits>"."""
    found = {layer.digest for layer in (*manifest.layers, manifest.config) if layer.digest}
    return frozenset(_normalize_digest(digest) for digest in found)


def referenced_digests(paths: Iterable[Path]) -> frozenset[str]:
    """Return all digests in the manifests.  Raises StoreError if one cannot be read."""
    found: frozenset[str] = frozenset()
    for path in paths:
        found |= digests_of(read_manifest(path))
    return found


def digests_in_file(path: Path) -> frozenset[str]:
    """Return the digests in a manifest; an empty set if it is missing or damaged."""
    try:
        return digests_of(read_manifest(path))
    except StoreError:
        return frozenset()


def _normalize_digest(digest: str) -> str:
    return digest.replace("-", ":", 1).lower()
