"""Build llama.cpp's CPU kernels for other instruction sets: `make test INSTRUCTIONS=avx2`.

All kernels are in one library, libggml-cpu.  This script compiles that library from the sources of
the installed wheel, keeps it in the user's cache and prints its folder.  With the folder in
LD_LIBRARY_PATH the dynamic linker takes it instead of the wheel's own.  Linux on x86-64 only.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.install import ROOT, SetUpError, cache_folder, llama_requirement, require_compiler
from tools.llama_cpp_source import fetch, require_cmake, run, unpack

LIBRARY = "libggml-cpu.so.0"
BUILD_LOG = ROOT / "build" / "libggml-cpu.log"
#: The sources of llama.cpp from which this library is configured and compiled.
NEEDED = ("CMakeLists.txt", "LICENSE", "cmake", "ggml", "include", "src", "vendor")
#: Instruction sets that CMake can enable, each as `GGML_<name>`.
EXTENSIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")
#: Name of a build → the instruction sets that it enables.
INSTRUCTIONS: Mapping[str, frozenset[str]] = {
    "x86-64": frozenset(),
    "avx2": frozenset(EXTENSIONS),
}
_LLAMA_PARTS = ("APP", "COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER")
_SYSTEM_INFO = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"


def main(arguments: Sequence[str]) -> int:
    """Print the library's folder on stdout, everything else on stderr."""
    try:
        folder = library_folder(" ".join(arguments), os.environ)
        print(f"llama.cpp: {system_info(folder)}", file=sys.stderr)
    except SetUpError as error:
        print(f"\nthe kernels could not be built: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


def library_folder(name: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of the library; compile it first if it is not cached.

    name: a key of INSTRUCTIONS.  Raises SetUpError.
    """
    if name not in INSTRUCTIONS:
        raise SetUpError(f"INSTRUCTIONS={name!r} must be one of {', '.join(INSTRUCTIONS)}")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SetUpError("this works on Linux on x86-64 only")
    requirement = llama_requirement(ROOT / "pyproject.toml")
    folder = cache_folder(environment).parent / "instructions" / f"{requirement}-{name}"
    if not (folder / LIBRARY).is_file():
        require_compiler(environment)
        require_cmake()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = compile_library(name, requirement, Path(scratch), environment)
            # Renamed at the end, so that an interrupted build leaves no partial library.
            built.replace(folder / LIBRARY)
    return folder


def compile_library(
    name: str, requirement: str, scratch: Path, environment: Mapping[str, str]
) -> Path:
    print(f"compiling {requirement}'s kernels for {name}: a minute ({BUILD_LOG})", file=sys.stderr)
    source = unpack(fetch(requirement, scratch), scratch / "source", NEEDED)
    build = scratch / "build"
    configure = ["cmake", "-S", str(source), "-B", str(build), "-Wno-dev", *cmake_options(name)]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    jobs = environment.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    run(configure, environment, BUILD_LOG, sys.stderr)
    target = ["--target", "ggml-cpu", "--parallel", jobs]
    run(["cmake", "--build", str(build), *target], environment, BUILD_LOG, sys.stderr)
    return (build / "bin" / LIBRARY).resolve()


def cmake_options(name: str) -> list[str]:
    """Return the options that make the build equal to the wheel's except for its instructions."""
    enabled = INSTRUCTIONS[name]
    return [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=ON",
        "-DGGML_NATIVE=OFF",
        *(f"-DGGML_{part}={'ON' if part in enabled else 'OFF'}" for part in EXTENSIONS),
        *(f"-DLLAMA_BUILD_{part}=OFF" for part in _LLAMA_PARTS),
    ]


def system_info(folder: Path) -> str:
    """Load llama.cpp with the folder's kernels and return its system information."""
    loaded = subprocess.run(
        [sys.executable, "-c", _SYSTEM_INFO],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if loaded.returncode:
        raise SetUpError(f"llama.cpp does not load with {folder / LIBRARY}: {loaded.stderr}")
    return loaded.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
