"""Manifests and config blobs: the JSON files that list a model's layers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec

from specd.errors import StoreError
from specd.go_json_encoder import go_json
from specd.store import blobs, safe_files
from specd.store import name as names

_MEDIA: Final = "application/vnd.ollama.image."
_CONFIG_MEDIA: Final = "application/vnd.docker.container.image.v1+json"
MANIFEST_MEDIA_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
_OLD_KINDS: Final = {"prompt": "template"}
#: A larger size is damage; sums of sizes up to this still fit in clients' integers.
_MAX_LAYER_BYTES: Final = 2**53
_NEVER: Final = datetime.fromtimestamp(0, UTC)


class Layer(msgspec.Struct, frozen=True, rename={"media_type": "mediaType", "parent": "from"}):
    """One layer in a manifest.

    size: bytes.  parent: short name of the model that the layer was taken from.
    name: name of a tensor or file, in safetensors models.
    """

    media_type: str
    digest: str
    size: Annotated[int, msgspec.Meta(ge=0, le=_MAX_LAYER_BYTES)] = 0
    parent: str = ""
    name: str = ""

    @property
    def kind(self) -> str:
        """The last part of the media type: model, draft, projector, adapter, template, ..."""
        kind = self.media_type.removeprefix(_MEDIA)
        return _OLD_KINDS.get(kind, kind)


class Config(msgspec.Struct, frozen=True):
    """The config blob's fields that specd uses; a missing field is empty."""

    model_format: str = ""
    model_family: str = ""
    model_families: list[str] | None = None
    model_type: str = ""
    file_type: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    remote_host: str = ""
    remote_model: str = ""
    capabilities: list[str] | None = None
    context_length: int = 0
    embedding_length: int = 0


class _File(msgspec.Struct, frozen=True):
    config: Layer
    layers: list[Layer] | None = None


class Manifest(msgspec.Struct, frozen=True):
    """Layers and config of one model.

    digest: sha256 of the file's bytes, 64 hex digits.  modified_at: in local time.
    """

    layers: tuple[Layer, ...]
    config: Layer
    digest: str
    modified_at: datetime

    @property
    def size_bytes(self) -> int:
        return self.config.size + sum(layer.size for layer in self.layers)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest file.  Raises StoreError if it is missing or not a manifest."""
    data = blobs.read_bytes(path, blobs.MAX_MANIFEST_BYTES)
    return parse_manifest(data, f"the manifest {path}", modified_at=blobs.modified_at(path))


def parse_manifest(data: bytes, what: str, *, modified_at: datetime = _NEVER) -> Manifest:
    """Parse a manifest.  Raises StoreError, which names the manifest as `what`."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{what} is damaged: {error}") from error
    return Manifest(
        layers=tuple(file.layers or ()),
        config=file.config,
        digest=hashlib.sha256(data).hexdigest(),
        modified_at=modified_at,
    )


def media_type(kind: str) -> str:
    """Return the media type of a layer kind (model, draft, ...) or of "config"."""
    return _CONFIG_MEDIA if kind == "config" else _MEDIA + kind


def manifest_text(config: Layer, layers: Sequence[Layer]) -> bytes:
    """Return the same bytes that Ollama would write for this manifest."""
    return go_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_MEDIA_TYPE,
            "config": _entry(config),
            "layers": [_entry(layer) for layer in layers],
        }
    )


def _entry(layer: Layer) -> dict[str, object]:
    entry: dict[str, object] = {"mediaType": layer.media_type, "digest": layer.digest}
    entry["size"] = layer.size
    if layer.parent:
        entry["from"] = layer.parent
    if layer.name:
        entry["name"] = layer.name
    return entry


def read_config(path: Path) -> Config:
    """Read a config blob; null counts as a missing field, as in Go.  Raises StoreError."""
    fields = blobs.read_json(path, dict[str, object])
    try:
        present = {key: value for key, value in fields.items() if value is not None}
        return msgspec.convert(present, Config)
    except msgspec.ValidationError as error:
        raise StoreError(f"the config {path} is damaged: {error}") from error


# --------------------------------------------------------------------------- references


def manifest_files(manifests: Path) -> Iterator[Path]:
    """Yield every manifest file, that is each file whose path is a valid model name.

    Raises StoreError if a folder cannot be read, because its manifests may name any blob.
    """
    folders = [manifests]
    with safe_files.to_store_errors(f"read {manifests}"):
        for _ in range(3):
            folders = [entry for each in folders for entry in each.iterdir() if entry.is_dir()]
        files = [entry for each in folders for entry in each.iterdir() if entry.is_file()]
    for file in files:
        if names.from_parts(file.relative_to(manifests).parts) is not None:
            yield file


def digests_of(manifest: Manifest) -> frozenset[str]:
    """Return the digests of the layers and the config, each "sha256:<64 hex digits>"."""
    digests = {layer.digest for layer in (*manifest.layers, manifest.config) if layer.digest}
    return frozenset(digest.replace("-", ":", 1).lower() for digest in digests)


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
