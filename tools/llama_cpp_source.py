"""Download, unpack and compile llama.cpp's sources, as the installed binding ships them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TextIO

from scripts.install import ROOT, SetUpError, llama_requirement
from scripts.progress import Progress, follow

#: The vocabularies for llama.cpp's own tests, and the code that reads them.
_TOKENIZER_FILES = ("models", "src/llama-vocab.cpp")


def tokenizer_sources() -> Path:
    """Return the cached folder with `_TOKENIZER_FILES`; fetch it if needed.  Raises SetUpError."""
    requirement = llama_requirement(ROOT / "pyproject.toml")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "specd" / "tests" / f"{requirement}-tokenizers"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        archive = fetch(requirement, Path(scratch))
        unpacked = unpack(archive, Path(scratch) / "unpacked", _TOKENIZER_FILES)
        # Renamed at the end, because two test processes may fetch it at once.
        try:
            unpacked.replace(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def vocabulary_file(name: str) -> Path:
    """Return the GGUF of a vocabulary.  name: such as llama-bpe."""
    return tokenizer_sources() / "models" / f"ggml-vocab-{name}.gguf"


def fetch(requirement: str, folder: Path) -> Path:
    """Return the source distribution in `folder`, taken from pip's cache or downloaded.

    Raises SetUpError.
    """
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "-d", str(folder)]
    pip = [sys.executable, "-m", "pip", "download", *options]
    command = [*pip, "--no-binary", "llama-cpp-python", requirement]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise SetUpError(f"pip could not fetch the sources of {requirement}; its output is above")
    found = next(iter(folder.glob("llama_cpp_python-*.tar.gz")), None)
    if found is None:
        raise SetUpError(f"pip downloaded no sources of {requirement}")
    return found


def unpack(archive: Path, folder: Path, needed: Sequence[str]) -> Path:
    """Unpack the needed paths of llama.cpp into the folder, and return it."""
    with tarfile.open(archive) as file:
        for member in file:
            name = needed_path(member.name, needed)
            content = file.extractfile(member) if name and member.isfile() else None
            if name and content:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    return folder


def needed_path(member: str, needed: Sequence[str]) -> str | None:
    """Return the member's path inside llama.cpp if it is needed, else None."""
    parts = PurePosixPath(member).parts
    if parts[1:3] != ("vendor", "llama.cpp") or ".." in parts:
        return None
    path = PurePosixPath(*parts[3:])
    return str(path) if any(path.is_relative_to(need) for need in needed) else None


def require_cmake() -> None:
    """Raise SetUpError if cmake is not installed."""
    if not shutil.which("cmake"):
        raise SetUpError(
            "no cmake.  Debian, Ubuntu: apt install cmake; Fedora: dnf install cmake;"
            " macOS: brew install cmake"
        )


def run(
    command: Sequence[str], environment: Mapping[str, str], log: Path, out: TextIO | None = None
) -> None:
    """Run a step of a build and show its progress.  Raises SetUpError after its last lines."""
    out = out or sys.stdout
    if follow(command, environment, log, Progress(out, live=out.isatty())):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-40:]), file=out, flush=True)
        raise SetUpError(f"the build failed; all of its output is in {log}")
