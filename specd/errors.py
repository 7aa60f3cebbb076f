"""All exceptions of specd.  `api/*/errors.py` maps them to HTTP statuses.

SpecdError
├── BadSetting                     an environment variable has an invalid value
├── InvalidRequest                 the caller must change the request
│   ├── InvalidOption              an entry of `options` has the wrong type
│   ├── ContextLengthExceeded      the prompt exceeds the context and must not be truncated
│   ├── Unsupported                the model lacks a capability (tools, thinking, images)
│   │   └── EmbeddingsUnsupported
│   └── InvalidName                a model name does not match the grammar
├── ModelNotFound
├── StoreError                     a manifest or blob cannot be read or written
├── InstallError                   the service cannot be installed or uninstalled
├── WorkerDied                     a worker process died twice on the same work
├── GoTemplateError                a Go template does not parse, or fails on its data
├── RegistryError                  a registry answered with an error
│   └── RegistryUnreachable        a registry did not answer; a retry may succeed
├── Unavailable
│   ├── QueueFull
│   ├── ShuttingDown
│   └── Cancelled                  the caller left while it waited
└── EngineError
    ├── LoadFailed                 the engine reported why it cannot load
    │   └── OutOfMemory            the device had too little memory
    ├── LoadStalled
    └── EngineCrashed              the engine process died, and its answers are lost
"""

from __future__ import annotations

import re


class SpecdError(Exception):
    """Base of all errors; `str(error)` is the text for the user."""


class BadSetting(SpecdError):
    pass


class GoTemplateError(SpecdError):
    """A Go template that does not parse, or that fails on its data; the text is Go's."""


class InvalidRequest(SpecdError):
    pass


class InvalidOption(InvalidRequest):
    pass


class ContextLengthExceeded(InvalidRequest):
    """A prompt that does not fit into a slot's context.

    n_prompt: tokens of the prompt.  n_ctx: tokens of a slot's context.
    """

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx
        super().__init__(
            f"request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens),"
            " try increasing it"
        )


class Unsupported(InvalidRequest):
    pass


class EmbeddingsUnsupported(Unsupported):
    """A request for embeddings to a model that only generates text."""

    def __init__(self) -> None:
        # llama-server's text, which Ollama passes on.
        super().__init__("This server does not support embeddings. Start it with `--embeddings`")


class InvalidName(InvalidRequest):
    pass


class ModelNotFound(SpecdError):
    """A model name without a manifest.  name: as the caller sent it."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"model '{name}' not found")


class StoreError(SpecdError):
    pass


class InstallError(SpecdError):
    pass


class WorkerDied(SpecdError):
    """The death of two worker processes on the same template or grammar.

    The request is not at fault: work that exceeds its limits is reported differently.
    """


class RegistryError(SpecdError):
    pass


class RegistryUnreachable(RegistryError):
    pass


class Unavailable(SpecdError):
    pass


class QueueFull(Unavailable):
    def __init__(self) -> None:
        # The two spaces are Ollama's; clients compare the text.
        super().__init__("server busy, please try again.  maximum pending requests exceeded")


class ShuttingDown(Unavailable):
    pass


class Cancelled(Unavailable):
    pass


class EngineError(SpecdError):
    pass


class LoadFailed(EngineError):
    pass


class OutOfMemory(LoadFailed):
    """A failed load that could succeed with more free memory or a smaller context."""


_NO_MEMORY = re.compile(
    r"(failed|unable) to allocate|cannot allocate memory|out of ((device|host) )?memory"
    r"|insufficient memory|bad_alloc|cudaMalloc failed|OutOf(Device|Host)Memory",
    re.IGNORECASE,
)


def is_out_of_memory_message(text: str) -> bool:
    """Return whether a message of an engine or of llama.cpp reports a failed allocation."""
    return _NO_MEMORY.search(text) is not None


class LoadStalled(EngineError):
    pass


class EngineCrashed(EngineError):
    pass
