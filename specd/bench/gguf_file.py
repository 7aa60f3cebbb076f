"""GGUF files through the gguf package, with clear errors and copies of metadata."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import gguf

from specd.errors import StoreError


def open_gguf(source: Path) -> Any:
    """Return a GGUFReader.  Raises StoreError for a file that is not a readable GGUF."""
    try:
        return gguf.GGUFReader(source)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise StoreError(f"{source}: cannot be read as GGUF: {error}") from error


def copy_metadata(writer: Any, reader: Any, keys: Collection[str]) -> None:
    """Copy the values of these keys to the writer, with their types, in the reader's order."""
    for key, field in reader.fields.items():
        if key in keys:
            kind, *element = field.types
            writer.add_key_value(key, field.contents(), kind, element[-1] if element else None)
