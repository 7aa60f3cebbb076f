"""Models on disk, byte-compatible with Ollama: names, manifests, blobs, GGUF metadata."""

from __future__ import annotations

from specd.store.changes import Changes
from specd.store.hold import Hold
from specd.store.library import Library
from specd.store.listing import ModelDetails, ModelInfo, ModelSummary
from specd.store.name import Name, Source
from specd.store.writer import Writer

__all__ = [
    "Changes",
    "Hold",
    "Library",
    "ModelDetails",
    "ModelInfo",
    "ModelSummary",
    "Name",
    "Source",
    "Writer",
]
