"""The progress of a long operation on the store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One status line of a pull, a push or a create.

    status: Ollama's text.  digest: of the current layer, with its `sha256:`; "" if there is none.
    total, completed: bytes; 0 is left out on the wire.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
