"""How far a long piece of work on the store has come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One line of a pull, a push or a create, in Ollama's words.

    digest: of the layer in work, with its `sha256:`; empty where the line is about none.
    total, completed: bytes; 0 is left out on the wire.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
