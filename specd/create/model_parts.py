"""The layers of a model in the making, and what the GGUFs among them say of it."""

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
    """A layer whose blob is in the store.  header: where it is a GGUF.  is_new: just written."""

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
    """What `from` a model begins with; config as its JSON has it."""

    parts: tuple[ModelPart, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict)


# --------------------------------------------------------------------------- from a model


def is_base_stored(writer: StoreWriter, name: Name) -> bool:
    """Whether `from_model` finds it without a pull."""
    return name.key == DEMO.key or safe_open.is_file(writer.manifest_path(name.stored))


def sources_version(writer: StoreWriter, request: CreateRequest, base: Name | None) -> object:
    """Return what differs once the base or an uploaded file was deleted or replaced."""
    files = (request.files or {}, request.adapters, request.draft_files)
    paths = [writer.blob_path(digest) for sent in files for digest in sent.values()]
    if base is not None:
        paths.append(writer.manifest_path(base.stored))
    return [identity(path) for path in paths]


def from_model(writer: StoreWriter, name: Name) -> Base:
    """All layers of a stored model, each remembering where it comes from.

    The pair inside the package is one too.  Raises ModelNotFound, StoreError.
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
    """Uploaded GGUFs, each as what it says it is, the model first; InvalidRequest for others."""
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
    """A GGUF given as a drafter is one, whatever else it could be."""
    if part.kind != "model":
        raise InvalidRequest(f"a drafter must be a model, and this GGUF is a {part.kind}")
    return _with_kind(part, "draft")


def check_model_files(parts: Sequence[ModelPart]) -> None:
    """One model, and only what belongs to it."""
    n = sum(part.kind == "model" for part in parts)
    if n != 1:
        raise InvalidRequest(f"one of the files must be the model, and {n} are")


def check_adapter(part: ModelPart, model: ModelPart | None) -> None:
    if part.kind != "adapter" or part.header is None:
        raise InvalidRequest("the adapter's GGUF is not a LoRA adapter")
    if model is None or model.header is None:
        return
    of, given = model.header.architecture, part.header.architecture
    if of != given:
        raise InvalidRequest(f"the adapter is made for {given}, and the model is of {of}")


def uploaded_blob(writer: StoreWriter, digest: str) -> Path:
    """Return where that blob lies; InvalidRequest where it does not."""
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
        raise InvalidRequest(f"the GGUF is one of {n} pieces: join them with llama-gguf-split")
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
    # Ollama writes the digest in this form, whichever the caller used.
    normal = f"sha256:{digest[7:].lower()}"
    layer = Layer(media_type(kind), normal, path.stat().st_size)
    return ModelPart(layer=layer, header=header, is_new=is_new)


def keep(writer: StoreWriter, kind: str, path: Path) -> ModelPart:
    """A file that an engine has written, staged in the store, as a layer; once it is whole."""
    read_header(path)
    digest = digest_of_file(path)
    is_new = not writer.has_blob(digest)
    writer.keep(path, digest)
    target = writer.blob_path(digest)
    return gguf_part(kind, digest, target, header=read_header(target), is_new=is_new)


def put(writer: StoreWriter, kind: str, data: bytes, *, parent: str = "") -> ModelPart:
    digest, is_new = writer.put(data)
    layer = Layer(media_type(kind), digest, len(data), parent)
    header = read_header(writer.blob_path(digest)) if kind in _WEIGHTS else None
    return ModelPart(layer=layer, header=header, is_new=is_new)
