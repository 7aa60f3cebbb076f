"""Models on disk, byte-compatible with Ollama: names, manifests, blobs, GGUF metadata."""

from __future__ import annotations

from specd.store.async_writer import AsyncWriter
from specd.store.library import Library
from specd.store.listing import ModelDetails, ModelInfo, ModelSummary
from specd.store.name import ModelSource, Name
from specd.store.writer import BlobLock, StoreWriter

__all__ = [
    "AsyncWriter",
    "BlobLock",
    "Library",
    "ModelDetails",
    "ModelInfo",
    "ModelSource",
    "ModelSummary",
    "Name",
    "StoreWriter",
]
