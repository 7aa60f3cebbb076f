"""Collection of a model's layers with weights, with a check that they fit together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from specd.create import model_parts as making
from specd.create.model_parts import Base, ModelPart
from specd.create.request import CreateRequest, ValidatedRequest
from specd.errors import InvalidRequest
from specd.store import StoreWriter
from specd.store.gguf import GgufHeader
from specd.store.gguf_metadata import metadata_of

_NOT_QUANTIZED: Final = ("F", "BF", "I8", "I16", "I32", "I64")


def collect_parts(
    writer: StoreWriter, request: CreateRequest, validated: ValidatedRequest, base: Base
) -> tuple[list[ModelPart], list[ModelPart]]:
    """Return all parts with weights, and those of them that are imported.

    Raises InvalidRequest if the parts do not make a model.
    """
    imported: list[ModelPart] = []
    if not request.base:
        imported += making.from_files(writer, request.files or {})
        making.check_model_files(imported)
    parts = [*base.parts, *imported]
    if request.adapters and not request.remote_host:
        model = next((part for part in parts if part.kind == "model"), None)
        adapters = making.from_files(writer, request.adapters)
        for adapter in adapters:
            making.check_adapter(adapter, model)
        parts, imported = [*parts, *adapters], [*imported, *adapters]
    if request.draft_files:
        drafts = [making.as_draft(part) for part in making.from_files(writer, request.draft_files)]
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
