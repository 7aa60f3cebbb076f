"""The measurements that an engine makes of its pair."""

from __future__ import annotations

from dataclasses import dataclass

#: The controller's bands of temperature, by number, as text.
TEMPERATURE_BANDS = ("0", "0 to 0.5", "0.5 to 1", "above 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BandHistory:
    """The measurements of one drafter in one band of temperatures.

    drafter: "model" or "lookup".  by_confidence, by_depth: (mean acceptance, observations) per bin.
    parked: why drafting was off in the end, "" if it was on.
    gain: tokens/s ÷ plain tokens/s, None if unknown.
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
    """The measurements of a pair, from which an engine starts when it is loaded again.

    device: the target's device; an engine ignores the history of another device.
    target_s: (rows of a pass, its seconds) as last measured; for display only.
    """

    bands: tuple[BandHistory, ...] = ()
    device: str = ""
    target_s: tuple[tuple[int, float], ...] = ()
