"""The converter's environment: PyTorch, its dependencies and llama.cpp's scripts, in one folder.

specd itself does not need it, and it takes gigabytes, so it is made only on request.  The scripts
come from the sources of the installed llama-cpp-python, so that the engine can read their output.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final

from specd.errors import InstallError

#: llama.cpp's requirements, with a PyTorch that also has builds for newer Pythons.
PACKAGES: Final = (
    "torch==2.13.0",
    "transformers==4.57.6",
    "sentencepiece>=0.1.98,<0.3",
    "protobuf>=4.21,<8",
    "numpy>=2.2,<3",
    "pyyaml>=5.1,<7",
    "requests>=2.25,<3",
    "safetensors>=0.4,<1",
    "tqdm>=4.27,<5",
)
#: The files used from llama.cpp's sources.
_WANTED: Final = (
    *("convert_hf_to_gguf.py", "convert_lora_to_gguf.py", "LICENSE"),
    *("conversion", "gguf-py/gguf", "gguf-py/LICENSE"),
)
_LLAMA: Final = "llama-cpp-python"
_COMPLETE: Final = "complete"


@dataclass(frozen=True, slots=True)
class Environment:
    """A prepared environment.  folder: its own folder."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def model_script(self) -> Path:
        return self.folder / "llama.cpp" / "convert_hf_to_gguf.py"

    @property
    def adapter_script(self) -> Path:
        return self.folder / "llama.cpp" / "convert_lora_to_gguf.py"


def find_environment(root: Path) -> Environment | None:
    """Return the environment of this specd and this Python, if it has been prepared in `root`."""
    found = Environment(root / _name())
    return found if (found.folder / _COMPLETE).is_file() else None


def prepare(root: Path) -> Environment:
    """Make the environment if it is missing; pip prints its progress.  Raises InstallError."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (found := find_environment(root)) is not None:
                return found
            environment = Environment(root / _name())
            shutil.rmtree(environment.folder, ignore_errors=True)
            environment.folder.mkdir()
            _install_into(environment)
            (environment.folder / _COMPLETE).touch()
            return environment
    except OSError as error:
        raise InstallError(f"cannot write to {root}: {error.strerror or error}") from error


def _name() -> str:
    """Return the folder's name, different for each llama-cpp-python, Python and package list."""
    packages = hashlib.sha256("\n".join(PACKAGES).encode()).hexdigest()[:8]
    return f"{_llama_version()}-python{sys.version_info[0]}.{sys.version_info[1]}-{packages}"


def _llama_version() -> str:
    return metadata.version(_LLAMA).partition("+")[0]


def _install_into(environment: Environment) -> None:
    _run(
        "a virtual environment (Debian, Ubuntu: apt install python3-venv)",
        *(sys.executable, "-m", "venv", environment.folder / "venv"),
    )
    pip = (environment.python, "-m", "pip", "--no-input", "--disable-pip-version-check")
    _run("the converter's packages", *pip, "install", "--only-binary", ":all:", *PACKAGES)
    sources = environment.folder / "sources"
    options = ("--no-deps", "--no-binary", _LLAMA, "-d", sources)
    _run("llama.cpp's sources", *pip, "download", *options, f"{_LLAMA}=={_llama_version()}")
    _unpack(sources, environment.folder / "llama.cpp")
    shutil.rmtree(sources)
    # Not -I, which would hide the packages next to the script.
    check = (environment.python, "-E", "-s", environment.model_script, "--print-supported-models")
    _run("a working converter", *check, shown=False)


def _run(what: str, *command: str | Path, shown: bool = True) -> None:
    """Run a command.  Raises InstallError.

    what: what the command provides.  shown: print the command's output as it comes.
    """
    pipe = None if shown else subprocess.PIPE
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        output = (done.stdout or b"").decode(errors="replace")[-2000:] or "its output is above"
        raise InstallError(f"cannot install {what}: {output}")


def _unpack(sources: Path, folder: Path) -> None:
    archive = next(sources.glob("llama_cpp_python-*.tar.gz"), None)
    if archive is None:
        raise InstallError(f"pip downloaded no sources of {_LLAMA}")
    with tarfile.open(archive) as file:
        for member in file:
            path = _wanted(member.name)
            content = file.extractfile(member) if path and member.isfile() else None
            if path and content is not None:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())


def _wanted(member: str) -> PurePosixPath | None:
    """Return the member's path inside llama.cpp; None if the converter does not need it."""
    parts = PurePosixPath(member).parts
    if parts[1:3] != ("vendor", "llama.cpp") or ".." in parts:
        return None
    path = PurePosixPath(*parts[3:])
    return path if any(path.is_relative_to(wanted) for wanted in _WANTED) else None
