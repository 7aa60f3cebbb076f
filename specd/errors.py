"""Everything that can go wrong, by name.  Knows no HTTP: `api/*/errors.py` maps it to statuses.

SpecdError
├── BadSetting                     a value of the environment that cannot be used
├── InvalidRequest                 the caller must change the request
│   ├── InvalidOption              one entry of `options` has the wrong type
│   ├── ContextLengthExceeded      prompt longer than the context, and it may not be cut
│   ├── Unsupported                the model cannot do what was asked (tools, thinking, images)
│   │   └── EmbeddingsUnsupported
│   └── InvalidName                a model name outside the grammar
├── ModelNotFound
├── StoreError                     a manifest or blob that cannot be read or written
├── InstallError                   the service cannot be put in place, or taken away
├── WorkerDied                     a process that works beside the daemon ended, twice
├── RegistryError                  what a registry answered
│   └── RegistryUnreachable        or that it did not answer: later it may
├── Unavailable
│   ├── QueueFull
│   ├── ShuttingDown
│   └── Cancelled                  the caller went away while waiting
└── EngineError
    ├── LoadFailed                 the engine said why
    │   └── OutOfMemory            there was no room for it
    ├── LoadStalled
    └── EngineCrashed              the engine process is gone; its answer is lost
"""

from __future__ import annotations

import re


class SpecdError(Exception):
    """Base of all errors that carry a sentence for the user in `str(error)`."""


class BadSetting(SpecdError):
    pass


class InvalidRequest(SpecdError):
    pass


class InvalidOption(InvalidRequest):
    pass


class ContextLengthExceeded(InvalidRequest):
    """n_prompt tokens do not fit the n_ctx tokens of a slot."""

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
    """The model gives text and no vectors."""

    def __init__(self) -> None:
        # llama-server's words, which Ollama passes on.
        super().__init__("This server does not support embeddings. Start it with `--embeddings`")


class InvalidName(InvalidRequest):
    pass


class ModelNotFound(SpecdError):
    """No manifest under that name; `name` is what the caller sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"model '{name}' not found")


class StoreError(SpecdError):
    pass


class InstallError(SpecdError):
    pass


class WorkerDied(SpecdError):
    """A process for templates or grammars ended before its answer, and so did a second one.

    It is no fault of the request: what the request may cause has limits of its own.
    """


class RegistryError(SpecdError):
    pass


class RegistryUnreachable(RegistryError):
    pass


class Unavailable(SpecdError):
    pass


class QueueFull(Unavailable):
    def __init__(self) -> None:
        # The two spaces are Ollama's; clients match on the text.
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
    """A load that more room, or a smaller context, could make good."""


_NO_MEMORY = re.compile(
    r"(failed|unable) to allocate|cannot allocate memory|out of ((device|host) )?memory"
    r"|insufficient memory|bad_alloc|cudaMalloc failed|OutOf(Device|Host)Memory",
    re.IGNORECASE,
)


def is_out_of_memory_message(words: str) -> bool:
    """Whether what an engine wrote, or llama.cpp in it, tells of memory that was refused."""
    return _NO_MEMORY.search(words) is not None


class LoadStalled(EngineError):
    pass


class EngineCrashed(EngineError):
    pass
