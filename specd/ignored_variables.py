"""Ollama's variables that change nothing here, and why (contract 9).

`docs/settings.md` lists them; the daemon names at its start those that are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LIBRARY: Final = "llama.cpp is built for this machine when specd is installed (`SPECD_ACCEL`)."
_NO_CLOUD: Final = "specd never asks Ollama's cloud."
_CLIENTS: Final = "Read by Ollama's own command alone."

IGNORED_VARIABLES: Final[Mapping[str, str]] = {
    "OLLAMA_LLM_LIBRARY": _LIBRARY,
    "OLLAMA_LIBRARY_PATH": _LIBRARY,
    "OLLAMA_VULKAN": _LIBRARY,
    "LLAMA_ARG_FIT": "There is no llama-server here whose arguments these are.",
    "LLAMA_ARG_FIT_TARGET": "There is no llama-server here whose arguments these are.",
    "OLLAMA_MAX_TRANSFER_STREAMS": "Of MLX's transfers; a GGUF always comes in up to 16 streams.",
    "OLLAMA_DEBUG_LOG_REQUESTS": "The daemon never writes to a disk what users write.",
    "OLLAMA_NO_CLOUD": _NO_CLOUD,
    "OLLAMA_REMOTES": _NO_CLOUD,
    "OLLAMA_CLOUD_BASE_URL": _NO_CLOUD,
    "OLLAMA_API_KEY": _NO_CLOUD,
    "OLLAMA_AUTH": _CLIENTS,
    "OLLAMA_EDITOR": _CLIENTS,
    "OLLAMA_EXPERIMENT": "Ollama itself no longer reads it.",
}
#: Read while specd is installed.
INSTALL_VARIABLES: Final = frozenset({"SPECD_ACCEL"})
