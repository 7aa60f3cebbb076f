"""A stored model before its weights are opened: name, config and the files of its layers."""

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

#: Limits the answer for a manifest that names one text thousands of times.
_MAX_LICENSES: Final = 16
_SAFETENSORS: Final = "tensor"


@dataclass(frozen=True, slots=True)
class LayerFile:
    """File of one layer.

    kind: model, draft, template, ...  parent: the model that the layer was taken from.
    """

    kind: str
    path: Path
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model as its manifest describes it.

    digest: 64 hex digits.  modified_at: aware, in local time.
    """

    name: Name
    digest: str
    size_bytes: int
    modified_at: datetime
    config: Config
    layers: tuple[LayerFile, ...]

    def paths(self, kind: str) -> tuple[Path, ...]:
        return tuple(layer.path for layer in self.layers if layer.kind == kind)

    def last_path(self, kind: str) -> Path | None:
        """Return the last layer of that kind, which is the one that Ollama uses."""
        paths = self.paths(kind)
        return paths[-1] if paths else None

    @property
    def weights(self) -> Path:
        """The GGUF to load.  Raises StoreError if the model has none."""
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
        """The Go template, None if the manifest has none; old manifests call it `prompt`."""
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
        """Return the text of the last layer of these kinds; None if there is none."""
        paths = [layer.path for layer in self.layers if layer.kind in kinds]
        return blobs.read_text(paths[-1]) if paths else None


def from_manifest(root: Path, name: Name, manifest: Manifest) -> StoredModel:
    """Return the model of a manifest.  Raises StoreError if a digest or the config is damaged."""
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
