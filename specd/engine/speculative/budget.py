"""Limits on the time that drafting may lose: in one answer, and on probes of a parked drafter."""

from __future__ import annotations

from dataclasses import dataclass

#: Reason of a request that does not draft because its loss budget is spent.
BUDGET_SPENT = "budget_spent"
#: An answer may be behind plain decoding by this many plain passes, plus this share of its time.
LOSS_PASSES, LOSS_SHARE = 2.0, 0.05
#: Share of plain decoding time that probes of a parked drafter may cost.
_PROBE_SHARE = 0.003
#: Budget for probes in plain passes: at first, and the most that can be saved up.
_PROBE_PASSES, _PROBE_PASSES_MAX = 2.0, 12.0
#: Fewest steps between two probes, so that one hard passage does not use up the budget.
_PROBE_EVERY = 4
#: After this many steps without a draft, an answer pays for a probe from its own budget; the probe
#: may cost at most this share of it.
_LONG_IDLE, _OWN_SHARE = 512, 0.25
#: Larger deviations from the expected time are due to other load on the machine and are cut.
_MAX_OVERRUN = 1.5


def overrun_ratio(seconds: float, expected_s: float) -> float:
    """Return measured ÷ expected seconds, limited to 1/_MAX_OVERRUN … _MAX_OVERRUN."""
    ratio = seconds / expected_s if expected_s > 0.0 else 1.0
    return min(max(ratio, 1.0 / _MAX_OVERRUN), _MAX_OVERRUN)


@dataclass(slots=True)
class LossBudget:
    """The limit on the time that drafting may lose in one answer.

    lost_s: seconds that its steps took beyond plain ones; negative if drafts gained time.
    plain_s: seconds that plain decoding would have taken so far, prompt included.
    n_idle: steps since the draft model drafted last.
    """

    lost_s: float = 0.0
    plain_s: float = 0.0
    n_idle: int = 0

    def left_s(self, plain_s: float) -> float:
        """Return the seconds that a step may take beyond a plain one; a plain one takes plain_s."""
        allowed_s = LOSS_PASSES * plain_s + LOSS_SHARE * (self.plain_s + plain_s)
        return allowed_s - self.lost_s

    def can_pay_probe(self, seconds: float, plain_s: float) -> bool:
        """Return whether the answer may pay for a probe itself after a long time without drafts."""
        return self.n_idle >= _LONG_IDLE and seconds <= _OWN_SHARE * self.left_s(plain_s)

    def add_prompt(self, seconds: float) -> None:
        """Note the seconds in which the target read the prompt, as the drafter must, too."""
        self.plain_s += seconds

    def add_step(self, n_tokens: int, seconds: float, plain_s: float) -> None:
        """Note a step that gave n_tokens.  plain_s: seconds of a plain step, which gives one."""
        self.n_idle += 1
        self.lost_s += seconds - n_tokens * plain_s
        self.plain_s += n_tokens * plain_s


@dataclass(slots=True)
class ProbeBudget:
    """The limit on the cost of probes of one drafter, over all answers.

    passes: unspent budget in plain passes.  n_waited: steps since the last probe.
    """

    passes: float = _PROBE_PASSES
    n_waited: int = 0

    def earn(self) -> None:
        """Note a step of a request whose drafter is parked; it adds to the budget."""
        self.n_waited += 1
        self._add(_PROBE_SHARE)

    def can_afford(self, passes: float, n_left: int) -> bool:
        """Return whether a probe may cost `passes` now.  n_left: tokens of the answer to come."""
        is_due = self.n_waited >= _PROBE_EVERY and self.passes >= passes
        return is_due and not self.is_unaffordable(passes, n_left)

    def is_unaffordable(self, passes: float, n_left: int) -> bool:
        """Return whether a probe is too expensive even for the largest budget."""
        return passes > min(_PROBE_PASSES_MAX, LOSS_SHARE * n_left)

    def spend(self, passes: float) -> None:
        """Charge a probe: the plain passes that it took, less those that its draft saved."""
        self.n_waited = 0
        self._add(-passes)

    def _add(self, passes: float) -> None:
        self.passes = min(self.passes + passes, _PROBE_PASSES_MAX)
