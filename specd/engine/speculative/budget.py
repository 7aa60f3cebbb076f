"""What drafting may lose: within one answer, and on probes of a drafter that does not pay."""

from __future__ import annotations

from dataclasses import dataclass

#: Why nothing is drafted in an answer that has lost as much as it may.
BUDGET_SPENT = "budget_spent"
#: Plain passes, and share of its plain time, by which an answer may be behind plain decoding.
LOSS_PASSES, LOSS_SHARE = 2.0, 0.05
#: Share of plain decoding time that probes of a drafter may cost while it does not pay.
_PROBE_SHARE = 0.003
#: Plain passes that probes may cost at first, and the most that is saved up for them.
_PROBE_PASSES, _PROBE_PASSES_MAX = 2.0, 12.0
#: Steps from one probe to the next, at the least: what is saved up must not go in one bad passage.
_PROBE_EVERY = 4
#: Steps without a draft after which an answer pays for a probe from its own budget, and the part
#: of that budget that the probe may cost.
_LONG_IDLE, _OWN_SHARE = 512, 0.25
#: Work that takes longer than expected by more than this says something about the machine.
_MAX_OVERRUN = 1.5


def overrun_ratio(seconds: float, expected_s: float) -> float:
    """Return how many times as long as expected something took, within reason."""
    ratio = seconds / expected_s if expected_s > 0.0 else 1.0
    return min(max(ratio, 1.0 / _MAX_OVERRUN), _MAX_OVERRUN)


@dataclass(slots=True)
class LossBudget:
    """Bounds what drafting loses in one answer, so that no answer is much slower than plain.

    lost_s: seconds that its steps took beyond plain ones; negative where drafts gained.
    plain_s: seconds that it would have taken so far in plain passes, its prompt included.
    n_idle: steps since the draft model drafted last.
    """

    lost_s: float = 0.0
    plain_s: float = 0.0
    n_idle: int = 0

    def left_s(self, plain_s: float) -> float:
        """Return the seconds that a step may take beyond a plain one, which takes plain_s."""
        allowed_s = LOSS_PASSES * plain_s + LOSS_SHARE * (self.plain_s + plain_s)
        return allowed_s - self.lost_s

    def can_pay_probe(self, seconds: float, plain_s: float) -> bool:
        """Whether the answer may pay for a probe itself, since it had no draft for long."""
        return self.n_idle >= _LONG_IDLE and seconds <= _OWN_SHARE * self.left_s(plain_s)

    def add_prompt(self, seconds: float) -> None:
        """Note that the target has read the prompt; a long one takes the drafter longer, too."""
        self.plain_s += seconds

    def add_step(self, n_tokens: int, seconds: float, plain_s: float) -> None:
        """Note a step that gave n_tokens.  plain_s: seconds of a plain one, which gives one."""
        self.n_idle += 1
        self.lost_s += seconds - n_tokens * plain_s
        self.plain_s += n_tokens * plain_s


@dataclass(slots=True)
class ProbeBudget:
    """Bounds what probes of one drafter cost over all answers.

    passes: plain ones, unspent.  n_waited: steps since the last probe.
    """

    passes: float = _PROBE_PASSES
    n_waited: int = 0

    def earn(self) -> None:
        """Note a step of a request whose drafter is parked."""
        self.n_waited += 1
        self._add(_PROBE_SHARE)

    def can_afford(self, passes: float, n_left: int) -> bool:
        """Whether a probe may cost so many, which the rest of the answer could win back.

        n_left: tokens that the answer may still have.
        """
        is_due = self.n_waited >= _PROBE_EVERY and self.passes >= passes
        return is_due and not self.is_unaffordable(passes, n_left)

    def is_unaffordable(self, passes: float, n_left: int) -> bool:
        """Whether no saving makes a probe affordable, since there is much to be read first."""
        return passes > min(_PROBE_PASSES_MAX, LOSS_SHARE * n_left)

    def spend(self, passes: float) -> None:
        """Charge a probe: the plain passes that it took, less those that its draft saved."""
        self.n_waited = 0
        self._add(-passes)

    def _add(self, passes: float) -> None:
        self.passes = min(self.passes + passes, _PROBE_PASSES_MAX)
