"""Manifests and config blobs: the JSON that says which layers make a model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec

from specd.errors import StoreError
from specd.go_json_encoder import go_json
from specd.store import blobs

_MEDIA: Final = "application/vnd.ollama.image."
_CONFIG_MEDIA: Final = "application/vnd.docker.container.image.v1+json"
_MANIFEST_MEDIA: Final = "application/vnd.docker.distribution.manifest.v2+json"
_OLD_KINDS: Final = {"prompt": "template"}
#: More is damage; and sums of such fit in what clients count with.
_MAX_LAYER_BYTES: Final = 2**53
_NEVER: Final = datetime.fromtimestamp(0, UTC)


class Layer(msgspec.Struct, frozen=True, rename={"media_type": "mediaType", "parent": "from"}):
    """size: bytes.  parent: the short name of the model that the layer was taken from.

    name: of a tensor or a file, in models of safetensors.
    """

    media_type: str
    digest: str
    size: Annotated[int, msgspec.Meta(ge=0, le=_MAX_LAYER_BYTES)] = 0
    parent: str = ""
    name: str = ""

    @property
    def kind(self) -> str:
        """model, draft, projector, adapter, template, system, license, params, messages, ..."""
        kind = self.media_type.removeprefix(_MEDIA)
        return _OLD_KINDS.get(kind, kind)


class Config(msgspec.Struct, frozen=True):
    """The config blob's fields that matter here; what is missing is empty."""

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
    """digest: sha256 of the file's bytes, 64 hex digits.  modified_at: in local time."""

    layers: tuple[Layer, ...]
    config: Layer
    digest: str
    modified_at: datetime

    @property
    def size_bytes(self) -> int:
        return self.config.size + sum(layer.size for layer in self.layers)


def read_manifest(path: Path) -> Manifest:
    """Raises StoreError for a file that is missing or no manifest."""
    data = blobs.read_bytes(path, blobs.MAX_MANIFEST_BYTES)
    return parse_manifest(data, f"the manifest {path}", modified_at=blobs.modified_at(path))


def parse_manifest(data: bytes, what: str, *, modified_at: datetime = _NEVER) -> Manifest:
    """what: how the StoreError for a text that is no manifest names it."""
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
    """kind: model, draft, ...; "config" for the config blob."""
    return _CONFIG_MEDIA if kind == "config" else _MEDIA + kind


def manifest_text(config: Layer, layers: Sequence[Layer]) -> bytes:
    """The bytes that Ollama writes for a model created there."""
    return go_json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_MEDIA,
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
    """Raises StoreError; as for Go's decoder, null is a missing field."""
    fields = blobs.read_json(path, dict[str, object])
    try:
        said = {key: value for key, value in fields.items() if value is not None}
        return msgspec.convert(said, Config)
    except msgspec.ValidationError as error:
        raise StoreError(f"the config {path} is damaged: {error}") from error
