"""The decoding modes that a bench compares: specd's and the peer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from enum import StrEnum
from typing import Any, Self

from specd.core import DrafterKind, EngineRequest, SpeculationMode


class Kind(StrEnum):
    """The kind of a mode, in the order of the tables."""

    PLAIN = "plain"
    FIXED = "fixed"  # a fixed number of drafted tokens
    DRAFTER = "drafter"  # the controller decides, with one kind of drafter alone
    AUTO = "auto"  # the controller decides everything: what users get
    PEER_PLAIN = "peer plain"
    PEER_DRAFT = "peer draft"  # the peer with the same drafter, up to n_draft tokens


_ORDER = tuple(Kind)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to decode.

    n_draft: draft length of fixed and peer modes, tokens.  changes: fields of EngineRequest that
    differ from a user's request; empty for a peer mode, which is an option of its server.
    """

    name: str
    kind: Kind
    n_draft: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def fixed(cls, n_draft: int) -> Self:
        changes = {"n_draft_max": n_draft, "mode": SpeculationMode.FIXED}
        return cls(f"k = {n_draft}", Kind.FIXED, n_draft, changes)

    @classmethod
    def drafter(cls, drafter: DrafterKind) -> Self:
        return cls(f"{drafter} alone", Kind.DRAFTER, changes={"drafters": (drafter,)})

    @classmethod
    def peer_draft(cls, n_max: int) -> Self:
        return cls(f"peer n_max = {n_max}", Kind.PEER_DRAFT, n_max)

    @property
    def is_peer(self) -> bool:
        return self.kind in {Kind.PEER_PLAIN, Kind.PEER_DRAFT}

    @property
    def sort_key(self) -> tuple[int, int, str]:
        """The sort key for tables."""
        return _ORDER.index(self.kind), self.n_draft, self.name

    def applied(self, request: EngineRequest) -> EngineRequest:
        return replaced(request, **self.changes)


PLAIN = Mode("plain", Kind.PLAIN, changes={"n_draft_max": 0})
AUTO = Mode("auto", Kind.AUTO)
PEER_PLAIN = Mode("peer plain", Kind.PEER_PLAIN)
