"""Run the simulator with compiled modules: the same figures in a third of the time.

`python -m benchmarks.simulator.compiled run|report ...` takes the simulator's own arguments.  mypyc
compiles the modules, which needs a C compiler and setuptools, and half a minute after each change
to one of them.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from specd.bench.gguf_cache import cache_directory

ROOT = Path(__file__).resolve().parents[2]
_ENGINE = ROOT / "specd" / "engine"
#: Modules that no step runs, in a folder whose other modules are all compiled.
_NOT_OF_A_STEP = ("__init__", "pair_stats", "timeline", "trace")
#: Modules that run at every step; the simulator does not subclass their classes.
SOURCES = (
    Path(__file__).with_name("engine.py"),
    _ENGINE / "backend.py",
    _ENGINE / "batching.py",
    _ENGINE / "loop.py",
    _ENGINE / "request_queue.py",
    _ENGINE / "prefill.py",
    _ENGINE / "slot.py",
    _ENGINE / "speculation.py",
    _ENGINE / "detokenizer.py",
    *sorted(p for p in (_ENGINE / "speculative").glob("*.py") if p.stem not in _NOT_OF_A_STEP),
)
_PACKAGES = ("benchmarks.simulator", "specd.engine", "specd.engine.speculative")
#: The variable that tells child processes where the compiled modules are.
_FOLDER = "SPECD_SIMULATOR_COMPILED"


def main() -> int:
    """Compile the modules if they changed, then run the simulator."""
    try:
        folder = compiled(SOURCES)
    except (ImportError, SystemExit) as error:
        print(f"error: the modules of a step cannot be compiled: {error}", file=sys.stderr)
        return 1
    os.environ[_FOLDER] = str(folder)
    use(folder)
    return int(importlib.import_module("benchmarks.simulator.__main__").main())


def compiled(sources: Sequence[Path]) -> Path:
    """Return the folder with the compiled modules, from the cache or compiled now.

    Raises SystemExit if mypyc refuses one of them; it prints why.
    """
    digest = hashlib.sha256(sys.version.encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    folder = cache_directory() / f"simulator-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _compile(sources, Path(scratch))
            (Path(scratch) / "lib").rename(folder)
    return folder


def _compile(sources: Sequence[Path], scratch: Path) -> None:
    """Compile into scratch/lib."""
    # Imported here, because the simulator itself does not need them.
    build = importlib.import_module("mypyc.build")
    distribution = importlib.import_module("setuptools").Distribution
    command = importlib.import_module("setuptools.command.build_ext").build_ext
    print("compiling the modules of a step", file=sys.stderr)
    extensions = build.mypycify(
        ["--follow-imports=silent", "--ignore-missing-imports", *map(str, sources)],
        opt_level="1",
        debug_level="0",
        target_dir=str(scratch),
    )
    building = command(distribution({"name": "step", "ext_modules": extensions}))
    building.build_lib, building.build_temp = str(scratch / "lib"), str(scratch)
    building.ensure_finalized()
    building.run()


def use(folder: Path) -> None:
    """Prefer the folder's modules to their sources in all later imports."""
    sys.path.append(str(folder))
    for package in _PACKAGES:
        places = importlib.import_module(package).__path__
        places.insert(0, str(folder.joinpath(*package.split("."))))


if _FOLDER in os.environ:  # a process of the report's pool
    use(Path(os.environ[_FOLDER]))

if __name__ == "__main__":
    sys.exit(main())
