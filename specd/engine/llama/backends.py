"""The backends of this build of llama.cpp, by its file names, without loading a library."""

from __future__ import annotations

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
