"""The interface of a draft model.  Prompt lookup needs no passes and has its own module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from specd.core import TokenId
from specd.engine.sampler import Sampler


@dataclass(slots=True)
class DraftJob:
    """A draft in progress for one slot.

    history: prompt and answer so far; neither model has evaluated its last token yet.
    position: index, among the generated tokens, of the first one to draft.
    extend: called with the margins so far before each further token; False ends the draft.
    second_best: for each drafted token the drafter's second-best, or NO_TOKEN.
    """

    slot: int
    history: Sequence[TokenId]
    sampler: Sampler
    position: int
    n_max: int
    extend: Callable[[list[float]], bool]
    tokens: list[TokenId] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    second_best: list[TokenId] = field(default_factory=list)


class SiblingLimits(NamedTuple):
    """Limits on the siblings of a draft.

    at: indices of the drafted tokens that may have one.  n_leaves: most siblings.
    n_rows: most rows of drafted tokens and siblings together.
    n_reevaluated: rows of the pass that evaluate tokens again that an earlier pass accepted.
    """

    at: Sequence[int] = ()
    n_leaves: int = 0
    n_rows: int = 1 << 31
    n_reevaluated: int = 0


class Drafter(Protocol):
    """A model that guesses the target's next tokens; its guesses never change the answer."""

    @property
    def native_ns(self) -> int:
        """Nanoseconds of all passes so far, without the work in Python."""
        ...

    def n_missed(self, slot: int, n_history: int) -> int:
        """Return how many tokens the drafter has yet to read, without the last of the history."""
        ...

    def draft(self, jobs: Sequence[DraftJob]) -> int:
        """Fill in tokens and margins of all jobs together; return the number of passes."""
        ...

    def rewind(self, slot: int, n_past: int) -> None:
        """Note that only the first n_past tokens of the slot's history are unchanged."""
        ...

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        """Remove n_discard tokens after the first n_keep from the slot's history."""
        ...
