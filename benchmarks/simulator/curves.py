"""Define the costs of passes on the simulated machines, in plain passes of the target."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

#: Nanoseconds of a plain pass: large, so that rounding a cost to an integer changes nothing.
PLAIN_NS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """The costs on one machine; curves compare by identity.

    target: width of a pass → its cost, interpolated between the widths and extrapolated beyond.
    draft_step: one pass of the drafter.  catch_up: one more token read in it.
    """

    name: str
    title: str
    target: Mapping[int, float]
    draft_step: float
    catch_up: float

    def target_ns(self, width: int) -> int:
        """Return the nanoseconds of a target pass of that width."""
        if width in self.target:
            return round(self.target[width] * PLAIN_NS)
        widths = sorted(self.target)
        at = min(max(bisect_left(widths, width), 1), len(widths) - 1)
        left, right = widths[at - 1], widths[at]
        slope = (self.target[right] - self.target[left]) / (right - left)
        return round((self.target[left] + slope * (width - left)) * PLAIN_NS)

    def draft_ns(self, n_passes: int, n_read: int) -> int:
        """Return the nanoseconds of drafter passes that also read n_read tokens."""
        return n_passes * round(self.draft_step * PLAIN_NS) + n_read * round(
            self.catch_up * PLAIN_NS
        )


def _costs(*up_to_9: float, at_17: float) -> dict[int, float]:
    """Return the costs by width.  costs: of the widths 1 to 9, and 17."""
    return {**dict(enumerate(up_to_9, start=1)), 17: at_17}


CURVES = (
    Curve(
        name="gpu-cheap",
        title="GPU, cheap rows",
        target=_costs(1, 1.03, 1.06, 1.1, 1.16, 1.2, 1.25, 1.3, 1.5, at_17=1.7),
        draft_step=0.05,
        catch_up=0.0005,
    ),
    Curve(
        name="gpu-dear-drafter",
        title="GPU, expensive drafter",
        target=_costs(1, 1.05, 1.1, 1.18, 1.3, 1.35, 1.4, 1.45, 1.75, at_17=2.2),
        draft_step=0.18,
        catch_up=0.002,
    ),
    Curve(
        name="cpu-steps",
        title="CPU in steps of four",
        target=_costs(1, 1.75, 2.05, 2.2, 2.9, 3.0, 3.2, 3.25, 4.0, at_17=6.4),
        draft_step=0.012,
        catch_up=0.003,
    ),
    Curve(
        name="cpu-cheaper",
        title="CPU, cheaper",
        target=_costs(1, 1.6, 1.76, 1.83, 2.82, 2.83, 2.84, 2.85, 3.6, at_17=5.0),
        draft_step=0.01,
        catch_up=0.0025,
    ),
    Curve(
        name="experts",
        title="mixture of experts",
        target=_costs(1, 1.45, 1.8, 2.1, 2.35, 2.6, 2.8, 3.0, 3.2, at_17=4.6),
        draft_step=0.1,
        catch_up=0.001,
    ),
    Curve(
        name="gpu-large",
        title="GPU, a large model: rows almost free",
        target=_costs(1, 1.0, 1.0, 1.01, 1.01, 1.02, 1.02, 1.03, 1.04, at_17=1.1),
        draft_step=0.03,
        catch_up=0.0003,
    ),
    Curve(
        name="dear-rows",
        title="every row costs half a pass",
        target=_costs(1, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, at_17=9.0),
        draft_step=0.05,
        catch_up=0.005,
    ),
)


def curve(name: str) -> Curve:
    """Return one of CURVES by its name.  Raises KeyError."""
    return {known.name: known for known in CURVES}[name]
