"""llama.cpp through its low-level bindings: the only package that imports llama_cpp.

Callers check all input first, because native code aborts the process on invalid input: batches that
are too long, ids out of range, rows without logits.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import sys
import types
from typing import Any


def import_bindings_alone() -> None:
    """Import the low-level bindings as `llama_cpp`: the rest of the package takes 0.2 s more.

    For a short process, before it imports anything of this package.
    """
    found = importlib.machinery.PathFinder.find_spec("llama_cpp")
    if found is None or "llama_cpp" in sys.modules:
        return
    package: Any = types.ModuleType("llama_cpp")
    package.__path__ = found.submodule_search_locations
    package.__version__ = importlib.metadata.version("llama_cpp_python")
    sys.modules["llama_cpp"] = package
    bindings = importlib.import_module("llama_cpp.llama_cpp")
    package.__dict__.update({**vars(bindings), **vars(package)})
