"""Pictures and sounds whose paths stand in a prompt."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from specd.errors import InvalidRequest

_KIND_OF_CAPABILITY: Final = {"vision": ("png", "jpg", "jpeg", "webp"), "audio": ("wav",)}


def extract_files(text: str, capabilities: Collection[str]) -> tuple[str, list[Path]]:
    """The text without the paths of files that this model can see or hear, and the files.

    A path has a slash, which a name in passing has not; its blanks are escaped, or it is quoted,
    as shells and terminals do it.  One that leads nowhere stays text.
    """
    endings = [e for sense, es in _KIND_OF_CAPABILITY.items() if sense in capabilities for e in es]
    if not endings:
        return text, []
    ending = rf"\.(?i:{'|'.join(endings)})"
    pattern = rf"""'([^'\n]+{ending})'|"([^"\n]+{ending})"|((?:\\.|[^\s'"\\])+{ending})(?!\w)"""
    found: list[Path] = []

    def taken(match: re.Match[str]) -> str:
        quoted = match[1] or match[2]
        path = quoted or re.sub(r"\\(.)", r"\1", match[3])
        if "/" not in path or not (file := _expand_path(path)):
            return match[0]
        found.append(file)
        return ""

    left = re.sub(pattern, taken, text)
    return (left.strip(), found) if found else (text, [])


def encode_file(file: Path) -> str:
    """As `images` has it.  Raises InvalidRequest."""
    try:
        return base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror or error}") from error


def _expand_path(path: str) -> Path | None:
    try:
        file = Path(path).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long; nobody's home; a NUL
        return None
