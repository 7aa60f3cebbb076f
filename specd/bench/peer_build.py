"""The llama-server that `make peer` builds on the libraries of specd's own engine.

llama-cpp-python's wheel has llama.cpp's libraries, including `libllama-common`, but no server.
`make peer` compiles the server's own files and links them to those libraries.  A bench then
compares two servers on one build of llama.cpp, not two compilers.
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
#: The wheel has each library under up to three names and in two folders; match one name only.
_LIBRARY = re.compile(r"lib/lib(?P<name>[\w-]+)\.(?:so\.\d+|\d+\.dylib)")
_COMMIT = (
    "import ctypes, sys\n"
    "commit = ctypes.CDLL(sys.argv[1]).ggml_commit\n"
    "commit.restype = ctypes.c_char_p\n"
    "print(commit().decode())"
)


class NoLibraries(SpecdError):
    """llama-cpp-python is installed without the libraries that a server needs."""


def library_folders() -> tuple[Path, Path]:
    """Return the folder of the engine's libraries, then that of the others."""
    distribution = metadata.distribution(_DISTRIBUTION)
    root = Path(str(distribution.locate_file("")))
    return root / "llama_cpp" / "lib", root / "lib"


def build_id() -> str:
    """Return an id of the installed libraries' contents.  Raises NoLibraries."""
    digests = _library_digests()
    if "llama-common" not in digests:
        raise NoLibraries(f"{_DISTRIBUTION} is installed without libllama-common")
    rows = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


def _library_digests() -> dict[str, str]:
    """Return name → digest from the installation record; hashing a GPU build's files is slow."""
    found = {}
    for path in metadata.files(_DISTRIBUTION) or ():
        match = _LIBRARY.fullmatch(str(path))
        if match and path.hash:
            found[match["name"]] = path.hash.value
    return found


def server_path() -> Path:
    """Return the path of the server for the installed libraries; it may be missing.

    Raises NoLibraries.
    """
    return cache_directory() / "peers" / build_id() / "llama-server"


def library_environment() -> Mapping[str, str]:
    """Return the variables with which the server loads the installed libraries."""
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    return {variable: os.pathsep.join(map(str, library_folders()))}


def engine_commit() -> str:
    """Return the llama.cpp commit of the engine's libraries, "" where unknown."""
    base = next(iter(sorted(library_folders()[0].glob("libggml-base.*"))), None)
    if base is None:
        return ""
    # A child process, so that this one loads no native code.
    command = [sys.executable, "-c", _COMMIT, str(base)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.match(r"[0-9a-f]{7,40}", said)
    return match[0] if match else ""
