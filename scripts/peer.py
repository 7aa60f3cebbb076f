"""Builds the llama-server that a bench is compared with: `make peer`.  Run again, it does nothing.

Only the server's own files are compiled, a minute or two: ggml, libllama and libllama-common are
those inside the installed wheel, so that both sides of a comparison run the same machine code, on
whatever accelerator the wheel was built for.
"""

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

from scripts.install import ROOT, SetUpError, llama_requirement, require_compiler, say
from scripts.progress import Progress, follow
from specd.bench import peer_build

CMAKE_PROJECT = ROOT / "scripts" / "llama-server"
BUILD_LOG = ROOT / "build" / "llama-server.log"
#: Of a source distribution, what the server's files are made of.
NEEDED = (
    "common",
    "ggml/include",
    "include",
    "scripts/ui-assets.cmake",
    "tools/mtmd",
    "tools/server",
    "tools/ui/ui.cpp.in",
    "tools/ui/ui.h.in",
    "vendor",
)


def main() -> int:
    try:
        make(os.environ)
    except (SetUpError, peer_build.NoLibraries) as error:
        say(f"\nllama-server could not be built: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; nothing was kept")
        return 130
    return 0


def make(environment: Mapping[str, str]) -> None:
    server = peer_build.server_path()
    if server.is_file():
        say(f"llama-server was built before: {server}")
        return
    require_compiler(environment)
    require_cmake()
    requirement = llama_requirement(ROOT / "pyproject.toml")
    say(f"building llama-server of {requirement}: a minute or two ({BUILD_LOG})")
    server.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=server.parent) as scratch:
        source = unpack_server(fetch(requirement, Path(scratch)), Path(scratch) / "source")
        built = compile_server(source, Path(scratch) / "build", environment)
        check(built)
        # Renamed into place: a build that was cut short is never taken for a server.
        built.replace(server)
    say(f"llama-server is built: {server}")


def require_cmake() -> None:
    if not shutil.which("cmake"):
        raise SetUpError(
            "no cmake.  Debian, Ubuntu: apt install cmake; Fedora: dnf install cmake;"
            " macOS: brew install cmake"
        )


def fetch(requirement: str, folder: Path) -> Path:
    """The source distribution, from pip's cache where it is known."""
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "-d", str(folder)]
    pip = [sys.executable, "-m", "pip", "download", *options]
    command = [*pip, "--no-binary", "llama-cpp-python", requirement]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise SetUpError(f"the sources of {requirement} could not be had (above)")
    found = next(iter(folder.glob("llama_cpp_python-*.tar.gz")), None)
    if found is None:
        raise SetUpError(f"pip gave no sources of {requirement}")
    return found


def unpack_server(archive: Path, folder: Path) -> Path:
    """Unpack the server's sources and return their folder.  Raises SetUpError without a server."""
    unpack(archive, folder, NEEDED)
    if not (folder / "tools" / "server" / "main.cpp").is_file():
        raise SetUpError(f"{archive.name} holds no llama-server")
    return folder


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
    """Return the member's path inside llama.cpp where it is needed, else None."""
    parts = PurePosixPath(member).parts
    if parts[1:3] != ("vendor", "llama.cpp") or ".." in parts:
        return None
    path = PurePosixPath(*parts[3:])
    return str(path) if any(path.is_relative_to(need) for need in needed) else None


def compile_server(source: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    libraries = ";".join(map(str, peer_build.library_folders()))
    configure = ["cmake", "-S", str(CMAKE_PROJECT), "-B", str(folder), "-Wno-dev"]
    configure += [f"-DLLAMA_SOURCE={source}", f"-DLLAMA_LIBRARIES={libraries}"]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    jobs = environment.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    run(configure, environment, BUILD_LOG)
    run(["cmake", "--build", str(folder), "--parallel", jobs], environment, BUILD_LOG)
    return folder / "llama-server"


def run(
    command: Sequence[str], environment: Mapping[str, str], log: Path, out: TextIO | None = None
) -> None:
    """Run a step of a build and show its progress.  Raises SetUpError after its last lines."""
    out = out or sys.stdout
    if follow(command, environment, log, Progress(out, live=out.isatty())):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-40:]), file=out, flush=True)
        raise SetUpError(f"the build failed; all of its output is in {log}")


def check(server: Path) -> None:
    """Start it once, now, where its failure can be explained."""
    tried = subprocess.run(
        [str(server), "--version"],
        env={**os.environ, **peer_build.library_environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        raise SetUpError(f"it does not start here: {tried.stderr.strip()}")
    say((tried.stdout + tried.stderr).strip().splitlines()[0])


if __name__ == "__main__":
    sys.exit(main())
