"""Layers of an unfinished model, with the headers of those that are GGUFs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from specd.create.request import CreateRequest, Files, ValidatedRequest
from specd.errors import InvalidRequest, ModelNotFound, StoreError
from specd.store import BlobLock, Name, StoreWriter, blobs, safe_files
from specd.store.demo import NAME as DEMO
from specd.store.demo import stored_demo
from specd.store.file_identity import stamp_if_readable
from specd.store.gguf import GgufHeader, read_header
from specd.store.gguf_metadata import metadata_of
from specd.store.manifest import Layer, Manifest, media_type, read_manifest
from specd.store.name import from_parts
from specd.store.writer import digest_of_file

log = logging.getLogger(__name__)

_WEIGHTS: Final = ("model", "draft", "projector", "adapter")
_PROJECTORS: Final = ("projector", "mmproj")
_NOT_QUANTIZED: Final = ("F", "BF", "I8", "I16", "I32", "I64")
#: Another create that fails may remove a blob between its writing and its locking.
_N_TRIES: Final = 3


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
    return name.key == DEMO.key or safe_files.is_file(writer.manifest_path(name.stored))


def sources_version(writer: StoreWriter, request: CreateRequest, base: Name | None) -> object:
    """Return a value that changes when the base or an uploaded file is deleted or replaced."""
    files = (request.files or {}, request.adapters, request.draft_files)
    paths = [writer.blob_path(digest) for sent in files for digest in sent.values()]
    if base is not None:
        paths.append(writer.manifest_path(base.stored))
    return [stamp_if_readable(path) for path in paths]


def from_model(writer: StoreWriter, name: Name) -> Base:
    """Return all layers of a stored model or of the demo, with its name as their parent.

    Raises ModelNotFound and StoreError.
    """
    path = writer.manifest_path(name.stored)
    if safe_files.is_file(path):
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
    inherited = Layer(layer.media_type, layer.digest, layer.size, parent, layer.name)
    return ModelPart(layer=inherited, header=header)


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
    layer = Layer(media_type("draft"), part.layer.digest, part.layer.size)
    return replace(part, layer=layer)


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
    with safe_files.to_store_errors(f"read {path}"), path.open("rb") as file:
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


# --------------------------------------------------------------------------- all parts with weights


def collect_parts(
    writer: StoreWriter, request: CreateRequest, validated: ValidatedRequest, base: Base
) -> tuple[list[ModelPart], list[ModelPart]]:
    """Return all parts with weights, and those of them that are imported.

    Raises InvalidRequest if the parts do not make a model.
    """
    imported: list[ModelPart] = []
    if not request.base:
        imported += from_files(writer, request.files or {})
        check_model_files(imported)
    parts = [*base.parts, *imported]
    if request.adapters and not request.remote_host:
        model = next((part for part in parts if part.kind == "model"), None)
        adapters = from_files(writer, request.adapters)
        for adapter in adapters:
            check_adapter(adapter, model)
        parts, imported = [*parts, *adapters], [*imported, *adapters]
    if request.draft_files:
        drafts = [as_draft(part) for part in from_files(writer, request.draft_files)]
        # Only the last drafter counts in Ollama, so the others would waste space.
        parts = [*(part for part in parts if part.kind != "draft"), *drafts]
        imported += drafts
    _check_types(parts, validated)
    return parts, imported


def type_of(header: GgufHeader) -> str:
    """Return the file's type, such as F16; if it has none, the type of its largest tensor."""
    if file_type := metadata_of(header).file_type:
        return file_type
    largest = max(header.tensors, key=lambda tensor: math.prod(tensor.shape), default=None)
    return largest.type if largest is not None else "unknown"


def _check_types(parts: Sequence[ModelPart], validated: ValidatedRequest) -> None:
    """Raise InvalidRequest if a layer that should be quantized cannot be."""
    if validated.draft_type and not any(part.kind == "draft" for part in parts):
        raise InvalidRequest("--draft-quantize requires a DRAFT model")
    for part in parts:
        file_type = validated.type_of(part.kind)
        if file_type and part.header is not None and type_of(part.header) != file_type:
            _check_is_float(part.header)


def _check_is_float(header: GgufHeader) -> None:
    if not all(tensor.type.startswith(_NOT_QUANTIZED) for tensor in header.tensors):
        raise InvalidRequest("quantization is only supported for F16, BF16 and F32 models")


# --------------------------------------------------------------------------- new layers


def gguf_part(
    kind: str, digest: str, path: Path, *, header: GgufHeader, is_new: bool = False
) -> ModelPart:
    # Ollama writes the digest in this form, whatever form the caller used.
    normal = f"sha256:{digest[7:].lower()}"
    layer = Layer(media_type(kind), normal, path.stat().st_size)
    return ModelPart(layer=layer, header=header, is_new=is_new)


def put(writer: StoreWriter, kind: str, data: bytes, *, parent: str = "") -> ModelPart:
    """Store bytes as a layer of that kind.  Raises StoreError."""
    digest, is_new = writer.put(data)
    layer = Layer(media_type(kind), digest, len(data), parent)
    header = read_header(writer.blob_path(digest)) if kind in _WEIGHTS else None
    return ModelPart(layer=layer, header=header, is_new=is_new)


class NewBlobs:
    """The blobs of an unfinished model: locked meanwhile, and removed if the create fails.

    `add`, `put` and `put_file` block: call them in the writer's threads.
    """

    def __init__(self, writer: StoreWriter) -> None:
        self.blob_lock: Final = BlobLock(writer)
        self._writer = writer
        self._new: set[str] = set()

    def add(self, parts: Sequence[ModelPart]) -> None:
        """Lock the blobs of these parts.  Raises StoreError if one is gone."""
        self._new |= {part.layer.digest for part in parts if part.is_new}
        self.blob_lock.add(part.layer.digest for part in parts)

    def put(self, kind: str, data: bytes) -> ModelPart:
        """Store a small layer and lock its blob.  Raises StoreError."""
        for _ in range(_N_TRIES - 1):
            part = put(self._writer, kind, data)
            try:
                self.add([part])
            except StoreError:
                continue
            return part
        part = put(self._writer, kind, data)
        self.add([part])
        return part

    def put_file(self, kind: str, path: Path) -> ModelPart:
        """Make a staged GGUF a layer and lock its blob.  Raises StoreError if it is damaged."""
        read_header(path)
        digest = digest_of_file(path)
        is_new = not self._writer.has_blob(digest)
        self._writer.keep(path, digest)
        target = self._writer.blob_path(digest)
        part = gguf_part(kind, digest, target, header=read_header(target), is_new=is_new)
        self.add([part])
        return part

    def keep(self, parts: Iterable[ModelPart]) -> None:
        """Exclude the blobs of these parts from `discard`: a manifest names them now."""
        self._new -= {part.layer.digest for part in parts}

    async def discard(self) -> None:
        """Unlock all blobs, and remove those written here that no manifest names."""
        await self._writer.threads.do(self.blob_lock.close)
        if not self._new:
            return
        try:
            await self._writer.run_exclusive(lambda: self._writer.discard(self._new))
        except StoreError as error:
            log.warning(
                "cannot remove the blobs of a failed create; the next start removes them: %s", error
            )
