"""What the gguf package leaves to its callers: clear errors, and metadata copied as it is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import gguf

from specd.errors import StoreError


def open_gguf(source: Path) -> Any:
    """A GGUFReader.  StoreError for a file that is no GGUF, or cannot be read."""
    try:
        return gguf.GGUFReader(source)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise StoreError(f"{source}: cannot be read as GGUF: {error}") from error


def copy_metadata(writer: Any, reader: Any, keys: Collection[str]) -> None:
    """The reader's values under these keys, of the types they have there, in the reader's order."""
    for key, field in reader.fields.items():
        if key in keys:
            kind, *element = field.types
            writer.add_key_value(key, field.contents(), kind, element[-1] if element else None)
