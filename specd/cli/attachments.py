"""Find the paths of images and audio files in a prompt."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from specd.errors import InvalidRequest

_KIND_OF_CAPABILITY: Final = {"vision": ("png", "jpg", "jpeg", "webp"), "audio": ("wav",)}


def extract_files(text: str, capabilities: Collection[str]) -> tuple[str, list[Path]]:
    """Return the text without the paths of files that this model can read, and these files.

    A path must contain a slash, so that a plain file name stays text.  Blanks are escaped, or the
    path is quoted, as shells and terminals do it.  A path without a file stays text.
    """
    endings = [e for sense, es in _KIND_OF_CAPABILITY.items() if sense in capabilities for e in es]
    if not endings:
        return text, []
    ending = rf"\.(?i:{'|'.join(endings)})"
    pattern = rf"""'([^'\n]+{ending})'|"([^"\n]+{ending})"|((?:\\.|[^\s'"\\])+{ending})(?!\w)"""
    found: list[Path] = []

    def replace(match: re.Match[str]) -> str:
        quoted = match[1] or match[2]
        path = quoted or re.sub(r"\\(.)", r"\1", match[3])
        if "/" not in path or not (file := _expand_path(path)):
            return match[0]
        found.append(file)
        return ""

    left = re.sub(pattern, replace, text)
    return (left.strip(), found) if found else (text, [])


def encode_file(file: Path) -> str:
    """Return the file's content as base64, for the field `images`.  Raises InvalidRequest."""
    try:
        return base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror or error}") from error


def _expand_path(path: str) -> Path | None:
    try:
        file = Path(path).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # path too long, unknown ~user, or a NUL byte
        return None
