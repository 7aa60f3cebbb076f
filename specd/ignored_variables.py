"""Ollama's variables that have no effect in specd, each with the reason.

`docs/settings.md` lists them.  The daemon logs a warning at its start for each one that is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LIBRARY: Final = "llama.cpp is built for this machine when specd is installed (`SPECD_ACCEL`)."
_NO_CLOUD: Final = "specd never contacts Ollama's cloud."
_CLIENTS: Final = "Only Ollama's own command reads it."
_NO_LLAMA_SERVER: Final = "specd does not start a llama-server, which would take this argument."

IGNORED_VARIABLES: Final[Mapping[str, str]] = {
    "OLLAMA_LLM_LIBRARY": _LIBRARY,
    "OLLAMA_LIBRARY_PATH": _LIBRARY,
    "OLLAMA_VULKAN": _LIBRARY,
    "LLAMA_ARG_FIT": _NO_LLAMA_SERVER,
    "LLAMA_ARG_FIT_TARGET": _NO_LLAMA_SERVER,
    "OLLAMA_MAX_TRANSFER_STREAMS": "For MLX models alone; a GGUF is pulled in up to 16 streams.",
    "OLLAMA_DEBUG_LOG_REQUESTS": "The daemon never writes the text of users to a disk.",
    "OLLAMA_NO_CLOUD": _NO_CLOUD,
    "OLLAMA_REMOTES": _NO_CLOUD,
    "OLLAMA_CLOUD_BASE_URL": _NO_CLOUD,
    "OLLAMA_API_KEY": _NO_CLOUD,
    "OLLAMA_AUTH": _CLIENTS,
    "OLLAMA_EDITOR": _CLIENTS,
    "OLLAMA_EXPERIMENT": "Ollama itself no longer reads it.",
}
#: Variables that only the installation reads.
INSTALL_VARIABLES: Final = frozenset({"SPECD_ACCEL"})
