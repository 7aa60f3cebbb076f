"""The controller's state of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.core import DrafterKind, SpeculationMode
from specd.engine.speculative.budget import LossBudget
from specd.engine.speculative.drafter_stats import DrafterStats, Speed
from specd.engine.speculative.expected_gain import BestLength, ExpectedGain


@dataclass(slots=True)
class RequestControl:
    """The controller's state of one request.

    n_max: longest draft in tokens.  band: its temperature band.
    drafter_stats: its drafters, in order of preference.  found: the best length of its lookup
    draft.  n_missed: tokens that the draft model has yet to read.  n_emitted: tokens of its answer
    so far.  siblings: indices of the drafted tokens whose siblings are sent too in this step.
    pass_s, draft_s: seconds of this step's pass and of its drafting that the request is charged.
    """

    n_max: int
    mode: SpeculationMode
    band: int
    drafter_stats: dict[DrafterKind, DrafterStats]
    expected_gain: ExpectedGain
    budget: LossBudget = field(default_factory=LossBudget)
    speed: Speed = field(default_factory=Speed)
    matches: Sequence[float] = ()
    found: BestLength = field(default_factory=BestLength)
    pass_s: float = 0.0
    draft_s: float = 0.0
    is_probe: bool = False
    is_probe_unaffordable: bool = False
    n_missed: int = 0
    n_emitted: int = 0
    siblings: Sequence[int] = ()
