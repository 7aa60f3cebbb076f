"""What the controller knows of one request, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.core import DrafterKind, SpeculationMode
from specd.engine.speculative.budget import LossBudget
from specd.engine.speculative.drafter_stats import DrafterStats, Speed
from specd.engine.speculative.expected_gain import BestLength, ExpectedGain


@dataclass(slots=True)
class RequestControl:
    """What the controller knows of one request.

    n_max: tokens that a draft of it may have.  band: its band of temperatures.
    drafter_stats: its drafters, in order of preference.  found: what its lookup draft is worth.
    n_missed: tokens that the draft model has yet to read.  n_emitted: tokens of its answer so far.
    siblings: indices of the drafted tokens whose siblings are sent too in this step.
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
    #: Of this step: seconds of its pass and of drafting that the request answers for.
    pass_s: float = 0.0
    draft_s: float = 0.0
    is_probe: bool = False
    is_probe_unaffordable: bool = False
    n_missed: int = 0
    n_emitted: int = 0
    siblings: Sequence[int] = ()
