"""Build the llama-server that a bench compares specd with: `make peer`.

Only the server's own files are compiled, which takes a minute or two.  The server uses ggml,
libllama and libllama-common of the installed wheel, so that both sides of a comparison run the same
machine code, on the accelerator that the wheel was built for.  A second run does nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scripts.install import ROOT, SetUpError, llama_requirement, require_compiler, say
from specd.bench import peer_binary
from tools.llama_cpp_source import fetch, require_cmake, run, unpack

CMAKE_PROJECT = Path(__file__).parent
BUILD_LOG = ROOT / "build" / "llama-server.log"
#: Paths of llama.cpp's sources that the server is compiled from.
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
    except (SetUpError, peer_binary.NoLibraries) as error:
        say(f"\nllama-server could not be built: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; nothing was kept")
        return 130
    return 0


def make(environment: Mapping[str, str]) -> None:
    """Build the server where it is missing.  Raises SetUpError or NoLibraries."""
    server = peer_binary.server_path()
    if server.is_file():
        say(f"llama-server is already built: {server}")
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
        # Renamed at the end, so that an interrupted build leaves no server.
        built.replace(server)
    say(f"llama-server is built: {server}")


def unpack_server(archive: Path, folder: Path) -> Path:
    """Unpack the server's sources and return their folder.  Raises SetUpError without a server."""
    unpack(archive, folder, NEEDED)
    if not (folder / "tools" / "server" / "main.cpp").is_file():
        raise SetUpError(f"{archive.name} holds no llama-server")
    return folder


def compile_server(source: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    """Compile the server in `folder` and return its path.  Raises SetUpError."""
    libraries = ";".join(map(str, peer_binary.library_folders()))
    configure = ["cmake", "-S", str(CMAKE_PROJECT), "-B", str(folder), "-Wno-dev"]
    configure += [f"-DLLAMA_SOURCE={source}", f"-DLLAMA_LIBRARIES={libraries}"]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    jobs = environment.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    run(configure, environment, BUILD_LOG)
    run(["cmake", "--build", str(folder), "--parallel", jobs], environment, BUILD_LOG)
    return folder / "llama-server"


def check(server: Path) -> None:
    """Run the server once and print its version.  Raises SetUpError with its error output."""
    tried = subprocess.run(
        [str(server), "--version"],
        env={**os.environ, **peer_binary.library_environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        raise SetUpError(f"{server.name} does not start here: {tried.stderr.strip()}")
    say((tried.stdout + tried.stderr).strip().splitlines()[0])


if __name__ == "__main__":
    sys.exit(main())
