"""The list of GPUs that this build of llama.cpp can use.

`python -m specd.engine devices` prints lines of JSON, each with the whole list; the last line is
the most complete.  A GPU must be opened to measure its memory.  If the GPU is full, that may end
the process, so the first line has the names without memory.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

#: Backends without a GPU.  Each backend has its own library: libggml-cuda.so, libggml-vulkan.so.
_WITHOUT_GPU = ("base", "cpu", "blas", "zendnn")


def is_cpu_only(folder: Path | None = None) -> bool:
    """Return whether the build has only CPU backends; False also if that is unknown.

    folder: the folder with the libraries; None: beside the bindings.
    """
    if folder is None:
        bindings = find_spec("llama_cpp")
        if bindings is None or bindings.origin is None:
            return False
        folder = Path(bindings.origin).parent / "lib"
    backends = [
        path.name.partition("ggml-")[2].partition(".")[0] for path in folder.glob("*ggml-*.*")
    ]
    return "base" in backends and all(name.startswith(_WITHOUT_GPU) for name in backends)


def main() -> int:
    if is_cpu_only():  # answer fast, without the library: the daemon waits
        sys.stdout.write("[]\n")
        return 0
    from specd.engine.llama import devices  # noqa: PLC0415 - loads the library

    devices.print_gpus()
    return 0
