"""What an engine learned of its pair."""

from __future__ import annotations

from dataclasses import dataclass

#: The controller's bands of temperature, by number, in words.
TEMPERATURE_BANDS = ("0", "0 to 0.5", "0.5 to 1", "above 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BandHistory:
    """What one drafter came to in one band of temperatures.  Whoever reads it may ignore any part.

    drafter: "model" or "lookup".  by_confidence, by_depth: (mean acceptance, observations) per bin.
    parked: why drafting was off in the end, "" where it was on.  gain: tokens/s ÷ plain tokens/s.
    """

    drafter: str
    band: int
    by_confidence: tuple[tuple[float, float], ...] = ()
    by_depth: tuple[tuple[float, float], ...] = ()
    parked: str = ""
    gain: float | None = None
    n_requests: int = 0
    n_drafted: int = 0
    n_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairHistory:
    """What an engine learned of its pair, to start from when it is loaded again.

    device: where the target lay; the worker fills it in, and believes no other device's history.
    target_s: (rows of a pass, its seconds) as last measured, to be shown and never believed.
    """

    bands: tuple[BandHistory, ...] = ()
    device: str = ""
    target_s: tuple[tuple[int, float], ...] = ()
