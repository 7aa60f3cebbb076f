"""What the loop needs of a draft model (prompt lookup needs no passes: prompt_lookup.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from specd.core import TokenId
from specd.engine.sampler import Sampler


@dataclass(slots=True)
class DraftJob:
    """A draft in the making for one slot.

    history: prompt and answer so far; its last token has not been evaluated by anyone.
    position: index, among the generated tokens, of the first one to draft.
    extend: asked with the margins so far before each further token.
    seconds: of each token the drafter's second best, NO_TOKEN where it has none to offer.
    """

    slot: int
    history: Sequence[TokenId]
    sampler: Sampler
    position: int
    n_max: int
    extend: Callable[[list[float]], bool]
    tokens: list[TokenId] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    seconds: list[TokenId] = field(default_factory=list)


class SiblingLimits(NamedTuple):
    """Limits on the siblings of a draft.

    at: indices of the drafted tokens that may have one.  n_leaves: most siblings.  n_rows: most
    rows of drafted tokens and siblings together.  n_owed: rows of the pass that evaluate again what
    an earlier pass accepted.
    """

    at: Sequence[int] = ()
    n_leaves: int = 0
    n_rows: int = 1 << 31
    n_reevaluated: int = 0


class Drafter(Protocol):
    """Guesses what the target will say next; it may be wrong but must never change what is said."""

    @property
    def native_ns(self) -> int:
        """Nanoseconds that all passes so far took; the rest of drafting is ours."""
        ...

    def n_missed(self, slot: int, n_history: int) -> int:
        """Tokens of a history of that length that the drafter has yet to read, but for the last."""
        ...

    def draft(self, jobs: Sequence[DraftJob]) -> int:
        """Fill tokens and margins of all jobs together; returns the passes it took."""
        ...

    def rewind(self, slot: int, n_past: int) -> None:
        """The slot's history is now the same as before only up to n_past tokens."""
        ...

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        """n_discard tokens after the first n_keep have left the slot's history."""
        ...
