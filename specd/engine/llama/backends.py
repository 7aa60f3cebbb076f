"""Which backends this build of llama.cpp has, by its files: nothing is loaded to find out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

#: Those without a GPU.  Each backend is a library of its own: libggml-cuda.so, libggml-vulkan.so.
_WITHOUT_GPU = ("base", "cpu", "blas", "zendnn")


def is_cpu_only(folder: Path | None = None) -> bool:
    """False where that cannot be told: whoever loads the library will see.

    folder: where the libraries lie; None is beside the bindings.
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
