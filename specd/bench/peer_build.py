"""A llama-server made of the very code that specd's engine runs: where `make peer` keeps it.

llama-cpp-python's wheel holds llama.cpp's libraries, `libllama-common` among them, but no server.
`make peer` compiles the server's own files from the same sources and links them to those libraries,
so that a bench compares two ways to drive one build and not two compilers.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from specd.bench.cache import cache_directory
from specd.errors import SpecdError

_DISTRIBUTION = "llama-cpp-python"
#: The wheel carries every library under up to three names and in two folders; one name will do.
_LIBRARY = re.compile(r"lib/lib(?P<name>[\w-]+)\.(?:so\.\d+|\d+\.dylib)")
_COMMIT = (
    "import ctypes, sys\n"
    "commit = ctypes.CDLL(sys.argv[1]).ggml_commit\n"
    "commit.restype = ctypes.c_char_p\n"
    "print(commit().decode())"
)


class NoLibraries(SpecdError):
    """llama-cpp-python is installed without what a server is linked to."""


def library_folders() -> tuple[Path, Path]:
    """Where the engine's own libraries lie, then where the rest of them does."""
    distribution = metadata.distribution(_DISTRIBUTION)
    root = Path(str(distribution.locate_file("")))
    return root / "llama_cpp" / "lib", root / "lib"


def build_id() -> str:
    """Names one build of the libraries, by their contents.  NoLibraries."""
    digests = _library_digests()
    if "llama-common" not in digests:
        raise NoLibraries(f"{_DISTRIBUTION} is installed without libllama-common")
    rows = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


def _library_digests() -> dict[str, str]:
    """From the record of what was installed: the libraries of a GPU build are large."""
    found = {}
    for path in metadata.files(_DISTRIBUTION) or ():
        match = _LIBRARY.fullmatch(str(path))
        if match and path.hash:
            found[match["name"]] = path.hash.value
    return found


def server_path() -> Path:
    """Where the server for the installed libraries is kept, there or not.  NoLibraries."""
    return cache_directory() / "peers" / build_id() / "llama-server"


def library_environment() -> Mapping[str, str]:
    """What makes such a server load the libraries that are installed now."""
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    return {variable: os.pathsep.join(map(str, library_folders()))}


def engine_commit() -> str:
    """The commit of llama.cpp that the engine's libraries were built from, "" where unknown."""
    base = next(iter(sorted(library_folders()[0].glob("libggml-base.*"))), None)
    if base is None:
        return ""
    # A process of its own: whoever asks loads no native code.
    command = [sys.executable, "-c", _COMMIT, str(base)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.match(r"[0-9a-f]{7,40}", said)
    return match[0] if match else ""
