"""The measured cost of a pass on this machine: the target's by width, the drafter's by step.

The target's cost is neither flat nor linear in the width: on a CPU it climbs in steps of a few
rows, on sparse models almost linearly.  So it is measured at load and updated with every pass.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

#: Share of an observed deviation by which the cost of that width changes, that of all widths, and
#: that of a width measured for the first time.
_OWN, _ALL, _FIRST = 0.10, 0.02, 0.6
#: Share of the deviation by which a long catch-up changes the cost of a missed token.
_READ = 0.3
#: Larger ratios of measured to expected time are due to other load on the machine and are cut.
_MAX_OVERRUN = 2.5
#: A ratio below this shows that the estimate was measured while the machine was busy.
_OUTLIER_RATIO = 0.5
#: Assumed cost of a further row, in passes of width 1, if only one width was measured.
_GUESSED_SLOPE = 0.25
#: With more missed tokens per pass than this, a draft's time measures reading, not drafting.
_MOSTLY_READING = 4


class CostModel:
    """Estimated seconds of a target pass of w rows, V(w), and of drafting k tokens, D(k)."""

    def __init__(
        self, target_s: Mapping[int, float], draft_step_s: float = 0.0, catch_up_s: float = 0.0
    ) -> None:
        """Start from the measurements at load.

        target_s: width → seconds, width 1 among them.
        draft_step_s: seconds of one drafter pass, sampling included.
        catch_up_s: seconds per token that the drafter has missed, read in a batch.
        """
        self._own = dict(sorted(target_s.items()))
        self._widths = list(self._own)
        # A narrow pass costs no more than a wide one; a measurement that says so was disturbed.
        for width in reversed(self._widths):
            self._keep_monotonic(width)
        self._scale = 1.0
        self._draft_step_s = draft_step_s
        self._catch_up_s = catch_up_s

    def measured(self) -> tuple[dict[int, float], float, float]:
        """Return the current estimates in seconds: by width, of a draft pass, of a missed token."""
        widths = {width: self.target_s(width) for width in self._widths}
        return widths, self._draft_step_s, self._catch_up_s

    def target_s(self, width: int) -> float:
        """Return V(width), interpolated between measured widths, extrapolated past the widest."""
        return self._scale * self._shape(width)

    def _shape(self, width: int) -> float:
        if (known := self._own.get(width)) is not None:
            return known
        if len(self._widths) == 1:
            return self._own[self._widths[0]] * (1.0 + _GUESSED_SLOPE * (width - self._widths[0]))
        at = min(max(bisect_left(self._widths, width), 1), len(self._widths) - 1)
        left, right = self._widths[at - 1], self._widths[at]
        if width > right:
            # Costs climb in steps, so the upper half predicts further rows better than the last.
            left = self._widths[max(bisect_right(self._widths, right // 2), 1) - 1]
        slope = (self._own[right] - self._own[left]) / (right - left)
        # A wider pass is never cheaper; a negative slope would be noise.
        return self._own[left] + max(slope, 0.0) * (width - left)

    def draft_s(self, n_tokens: int, n_missed: int = 0) -> float:
        """Return D(n_tokens) for a drafter that must first read n_missed tokens."""
        if n_tokens == 0:
            return 0.0
        return n_tokens * self._draft_step_s + self.reading_s(n_missed)

    def reading_s(self, n_missed: int) -> float:
        return n_missed * self._catch_up_s

    def break_even(self, longest: int) -> float | None:
        """Return the share of drafted tokens that must be accepted so that drafting costs no time.

        It is that of one request alone, at the best draft length up to `longest`.  1.0: no draft
        saves time.  None: nothing can be drafted, or no pass of several rows has been measured.
        """
        if longest < 1 or len(self._widths) == 1:
            return None
        plain_s = self.target_s(1)
        shares = (
            ((self.draft_s(k) + self.target_s(k + 1)) / plain_s - 1.0) / k
            for k in range(1, longest + 1)
        )
        return min(max(min(shares), 0.0), 1.0)

    def observe_target(self, width: int, seconds: float) -> None:
        """Update the estimates with the seconds of a target pass of `width` rows."""
        ratio = seconds / self.target_s(width)
        if ratio < _OUTLIER_RATIO and width in self._own:
            # The drafter was measured on the same busy machine, so its estimate shrinks as well.
            self._scale *= ratio
            self._draft_step_s *= ratio
            self._catch_up_s *= ratio
            return
        overrun_ratio = min(ratio, _MAX_OVERRUN) - 1.0
        share = _OWN
        if width not in self._own:
            # This width was only interpolated, so its error says nothing about measured widths.
            share = 1.0 if ratio < _OUTLIER_RATIO else _FIRST
            self._own[width] = self._shape(width)
            self._widths = sorted(self._own)
        self._own[width] *= 1.0 + share * overrun_ratio
        if share == _OWN:
            self._scale *= 1.0 + _ALL * overrun_ratio
        self._keep_monotonic(width)

    def _keep_monotonic(self, width: int) -> None:
        """Raise wider and lower narrower passes to the cost of this width where needed."""
        cost, at = self._own[width], self._widths.index(width)
        # The costs were in order before, so each side ends at the first that still is.
        for narrower in reversed(self._widths[:at]):
            if self._own[narrower] <= cost:
                break
            self._own[narrower] = cost
        for wider in self._widths[at + 1 :]:
            if self._own[wider] >= cost:
                break
            self._own[wider] = cost

    def observe_draft(self, n_steps: int, n_missed: int, seconds: float) -> None:
        """Update the estimates with n_steps drafter passes, the first with n_missed more tokens."""
        expected = self.draft_s(n_steps, n_missed)
        if expected <= 0.0:
            self._draft_step_s = seconds / n_steps
            return
        ratio = seconds / expected
        if ratio < _OUTLIER_RATIO:
            self._draft_step_s *= ratio
            self._catch_up_s *= ratio
        elif n_missed > n_steps * _MOSTLY_READING:
            # Add a difference, do not scale: an estimate of zero would stay zero.
            per_token = max(seconds - self.draft_s(n_steps), 0.0) / n_missed
            per_token = min(per_token, self._draft_step_s)
            self._catch_up_s += _READ * (per_token - self._catch_up_s)
        else:
            self._draft_step_s *= 1.0 + _OWN * (min(ratio, _MAX_OVERRUN) - 1.0)
