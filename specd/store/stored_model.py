"""One model of the store before its weights are opened: its name, its layers' files, its config."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from specd import core
from specd.errors import StoreError
from specd.store import blobs
from specd.store.manifest import Config, Manifest, read_config
from specd.store.name import Name

#: Of a model that names one text ten thousand times.
_MAX_LICENSES: Final = 16
_SAFETENSORS: Final = "tensor"


@dataclass(frozen=True, slots=True)
class LayerFile:
    """kind: model, draft, template, ...  parent: the model that the layer was taken from."""

    kind: str
    path: Path
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """digest: 64 hex digits.  modified_at: aware, in local time."""

    name: Name
    digest: str
    size_bytes: int
    modified_at: datetime
    config: Config
    layers: tuple[LayerFile, ...]

    def paths(self, kind: str) -> tuple[Path, ...]:
        return tuple(layer.path for layer in self.layers if layer.kind == kind)

    def last_path(self, kind: str) -> Path | None:
        """The layer that counts where Ollama lets the last one win."""
        paths = self.paths(kind)
        return paths[-1] if paths else None

    @property
    def weights(self) -> Path:
        """The GGUF to load; raises StoreError where the model has none."""
        path = self.last_path("model")
        if path is not None:
            return path
        if self.paths(_SAFETENSORS):
            raise StoreError(f"{self.name.short} is stored as safetensors; only GGUF can be loaded")
        raise StoreError(f"the manifest of {self.name.short} names no weights")

    @property
    def parent(self) -> str:
        return next((layer.parent for layer in self.layers if layer.kind == "model"), "")

    @property
    def template(self) -> str | None:
        """The Go template, where the manifest has one; `prompt` was its kind of old."""
        return self._text("template", "prompt")

    @property
    def system(self) -> str:
        return self._text("system") or ""

    @property
    def licenses(self) -> tuple[str, ...]:
        return tuple(blobs.read_text(path) for path in self.paths("license")[:_MAX_LICENSES])

    @property
    def parameters(self) -> dict[str, object]:
        path = self.last_path("params")
        return blobs.read_json(path, dict[str, object]) if path else {}

    @property
    def messages(self) -> tuple[core.Message, ...]:
        path = self.last_path("messages")
        if path is None:
            return ()
        entries = blobs.read_json(path, list[dict[str, object]])
        return tuple(
            core.Message(role=str(e.get("role", "")), content=str(e.get("content") or ""))
            for e in entries
        )

    def _text(self, *kinds: str) -> str | None:
        """Of the last layer of these kinds."""
        paths = [layer.path for layer in self.layers if layer.kind in kinds]
        return blobs.read_text(paths[-1]) if paths else None


def from_manifest(root: Path, name: Name, manifest: Manifest) -> StoredModel:
    """Raises StoreError where a digest or the config is damaged."""
    return StoredModel(
        name=name,
        digest=manifest.digest,
        size_bytes=manifest.size_bytes,
        modified_at=manifest.modified_at,
        config=read_config(blobs.path_of(root, manifest.config.digest)),
        layers=tuple(
            LayerFile(layer.kind, blobs.path_of(root, layer.digest), layer.parent)
            for layer in manifest.layers
        ),
    )
