"""Layers of an unfinished model, with the headers of those that are GGUFs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from specd.create.request import CreateRequest, Files
from specd.errors import InvalidRequest, ModelNotFound, StoreError
from specd.store import Name, StoreWriter, atomic_files, blobs, safe_open
from specd.store.demo import NAME as DEMO
from specd.store.demo import stored_demo
from specd.store.gguf import GgufHeader, read_header
from specd.store.manifest import Layer, Manifest, media_type, read_manifest
from specd.store.manifest_tree import identity
from specd.store.name import from_parts
from specd.store.writer import digest_of_file

_WEIGHTS: Final = ("model", "draft", "projector", "adapter")
_PROJECTORS: Final = ("projector", "mmproj")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """A layer whose blob is in the store.

    header: None unless it is a GGUF.  is_new: its blob was written by this create.
    """

    layer: Layer
    header: GgufHeader | None = None
    is_new: bool = False

    @property
    def kind(self) -> str:
        return self.layer.kind

    @property
    def status(self) -> str:
        done = "creating new layer" if self.is_new else "using existing layer"
        return f"{done} {self.layer.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Layers and config of the model in `from`.

    config: fields of its config blob.
    """

    parts: tuple[ModelPart, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict)


# --------------------------------------------------------------------------- from a model


def is_base_stored(writer: StoreWriter, name: Name) -> bool:
    """Return whether `from_model` finds the model without a pull."""
    return name.key == DEMO.key or safe_open.is_file(writer.manifest_path(name.stored))


def sources_version(writer: StoreWriter, request: CreateRequest, base: Name | None) -> object:
    """Return a value that changes when the base or an uploaded file is deleted or replaced."""
    files = (request.files or {}, request.adapters, request.draft_files)
    paths = [writer.blob_path(digest) for sent in files for digest in sent.values()]
    if base is not None:
        paths.append(writer.manifest_path(base.stored))
    return [identity(path) for path in paths]


def from_model(writer: StoreWriter, name: Name) -> Base:
    """Return all layers of a stored model or of the demo, with its name as their parent.

    Raises ModelNotFound and StoreError.
    """
    path = writer.manifest_path(name.stored)
    if safe_open.is_file(path):
        found = from_parts(path.parts[-4:])
        assert found is not None, f"{path} was found by its name"
        return _from_manifest(writer, found.short, read_manifest(path))
    demo = stored_demo() if name.key == DEMO.key else None
    if demo is None:
        raise ModelNotFound(name.short)
    return Base(
        parts=tuple(
            put(writer, file.kind, file.path.read_bytes(), parent=DEMO.short)
            for file in demo.layers
        )
    )


def _from_manifest(writer: StoreWriter, parent: str, manifest: Manifest) -> Base:
    return Base(
        parts=tuple(_inherited(writer, parent, layer) for layer in manifest.layers),
        config=blobs.read_json(writer.blob_path(manifest.config.digest), dict[str, object]),
    )


def _inherited(writer: StoreWriter, parent: str, layer: Layer) -> ModelPart:
    header = read_header(writer.blob_path(layer.digest)) if layer.kind in _WEIGHTS else None
    kept = Layer(layer.media_type, layer.digest, layer.size, parent, layer.name)
    return ModelPart(layer=kept, header=header)


# --------------------------------------------------------------------------- from files


def from_files(writer: StoreWriter, files: Files) -> tuple[ModelPart, ...]:
    """Return the uploaded GGUFs as layers of the kind in their headers, the model first.

    Raises InvalidRequest for files of other formats.
    """
    if not files:
        raise InvalidRequest("no files provided to convert")
    paths = {digest: uploaded_blob(writer, digest) for digest in files.values()}
    begins = [_is_gguf(path) for path in paths.values()]
    if not any(begins) and not any(name.endswith(".gguf") for name in files):
        raise InvalidRequest("unknown type")
    if not all(begins):
        raise InvalidRequest("supplied file was not in GGUF format")
    parts = [_import_gguf(digest, path) for digest, path in paths.items()]
    return tuple(sorted(parts, key=lambda part: part.kind != "model"))


def as_draft(part: ModelPart) -> ModelPart:
    """Return a model's GGUF as a drafter.  Raises InvalidRequest for other kinds."""
    if part.kind != "model":
        raise InvalidRequest(f"a drafter must be a model, but this GGUF is a {part.kind}")
    return _with_kind(part, "draft")


def check_model_files(parts: Sequence[ModelPart]) -> None:
    """Raise InvalidRequest unless exactly one part is the model."""
    n = sum(part.kind == "model" for part in parts)
    if n != 1:
        raise InvalidRequest(f"exactly one of the files must be a model, but {n} are")


def check_adapter(part: ModelPart, model: ModelPart | None) -> None:
    """Raise InvalidRequest unless the part is a LoRA adapter for the model."""
    if part.kind != "adapter" or part.header is None:
        raise InvalidRequest("the adapter's GGUF is not a LoRA adapter")
    if model is None or model.header is None:
        return
    of, given = model.header.architecture, part.header.architecture
    if of != given:
        raise InvalidRequest(f"the adapter is for the architecture {given}, but the model is {of}")


def uploaded_blob(writer: StoreWriter, digest: str) -> Path:
    """Return the path of an uploaded blob.  Raises InvalidRequest if it is missing."""
    path = writer.blob_path(digest)
    if not path.is_file():
        raise InvalidRequest(f'blob "{digest}" not found')
    return path


def _is_gguf(path: Path) -> bool:
    with atomic_files.to_store_errors(f"read {path}"), path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _import_gguf(digest: str, path: Path) -> ModelPart:
    try:
        header = read_header(path)
    except StoreError as error:
        raise InvalidRequest(str(error)) from error
    if (n := header.integer("split.count", 1)) > 1:
        raise InvalidRequest(f"the GGUF is one of {n} parts: merge them with llama-gguf-split")
    return gguf_part(_kind(header), digest, path, header=header)


def _kind(header: GgufHeader) -> str:
    kind = header.text("general.type")
    if kind == "adapter":
        return "adapter"
    if kind in _PROJECTORS or header.architecture == "clip":
        return "projector"
    return "model"


def _with_kind(part: ModelPart, kind: str) -> ModelPart:
    layer = Layer(media_type(kind), part.layer.digest, part.layer.size)
    return replace(part, layer=layer)


# --------------------------------------------------------------------------- new layers


def gguf_part(
    kind: str, digest: str, path: Path, *, header: GgufHeader, is_new: bool = False
) -> ModelPart:
    # Ollama writes the digest in this form, whatever form the caller used.
    normal = f"sha256:{digest[7:].lower()}"
    layer = Layer(media_type(kind), normal, path.stat().st_size)
    return ModelPart(layer=layer, header=header, is_new=is_new)


def keep(writer: StoreWriter, kind: str, path: Path) -> ModelPart:
    """Make a staged file that an engine has written a layer.  Raises StoreError if damaged."""
    read_header(path)
    digest = digest_of_file(path)
    is_new = not writer.has_blob(digest)
    writer.keep(path, digest)
    target = writer.blob_path(digest)
    return gguf_part(kind, digest, target, header=read_header(target), is_new=is_new)


def put(writer: StoreWriter, kind: str, data: bytes, *, parent: str = "") -> ModelPart:
    """Store bytes as a layer of that kind.  Raises StoreError."""
    digest, is_new = writer.put(data)
    layer = Layer(media_type(kind), digest, len(data), parent)
    header = read_header(writer.blob_path(digest)) if kind in _WEIGHTS else None
    return ModelPart(layer=layer, header=header, is_new=is_new)
