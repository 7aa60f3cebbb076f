"""What one drafter came to in one request: what it gained, and whether it may go on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specd.engine.speculative.acceptance import Acceptance

DOES_NOT_PAY = "does_not_pay"
LOW_ACCEPTANCE = "low_acceptance"

#: Memory of the running speeds, in steps.
_SPEED_MEMORY = 32.0
#: Park after this many drafting steps if the gain is below the figure beside it.
_PATIENCE = ((4, 0.6), (10, 0.8), (24, 0.95))
#: Park after so many drafts in a row of which nothing was worth sending.
_IDLE = 24
#: A probe must gain this much before drafting resumes, so that noise does not flap.
_RESUME_GAIN = 1.03
PROBE_STEPS = 2
_PROBE_EVERY = 4
#: Each probe in vain makes the next wait longer by this, or by what it cost.
_PROBE_GROWTH = 1.5
_PROBE_EVERY_MAX = 256
#: A probe in which every guess was right is carried on for so many steps.
_LONGER_PROBE = 6
#: No budget makes the wait longer than this.
_WAIT_MAX = 2048
#: Share of plain decoding time that probing may cost.
PROBE_BUDGET = 0.01
#: Sent tokens over which acceptance is measured, and for how many more, and how many drafts, it
#: must stay too low.
_WINDOW, _STAYS, _STAYS_DRAFTS = 48, 32, 6
#: Sent tokens that are enough to refuse a probe for.
_PROBED = 12
#: Drafts are kept so short that as much more than the threshold should be accepted.
_ABOVE_THRESHOLD = 0.05


@dataclass(slots=True)
class Speed:
    """Tokens and seconds of recent steps, and the seconds of as many tokens in plain passes."""

    tokens: float = 0.0
    seconds: float = 0.0
    plain_s: float = 0.0
    steps: float = 0.0

    def add(self, tokens: int, seconds: float, plain_s: float) -> None:
        keep = 1.0 - 1.0 / _SPEED_MEMORY
        self.tokens = self.tokens * keep + tokens
        self.seconds = self.seconds * keep + seconds
        self.plain_s = self.plain_s * keep + plain_s * tokens
        self.steps = self.steps * keep + 1.0

    @property
    def gain(self) -> float:
        """Plain seconds for the same tokens ÷ seconds they took; 1 before anything is known."""
        return self.plain_s / self.seconds if self.seconds else 1.0


@dataclass(slots=True)
class Measured:
    """The steps of one request that one drafter drafted for, by the clock.

    seconds: of these steps.  plain_s: the sum of what a plain pass would have taken at each.
    """

    n_steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    plain_s: float = 0.0

    def add(self, tokens: int, seconds: float, plain_s: float) -> None:
        self.n_steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self.plain_s += plain_s

    @property
    def passes(self) -> float:
        """How many plain passes would have taken as long."""
        return self.seconds * self.n_steps / self.plain_s if self.plain_s else 0.0


@dataclass(slots=True)
class Track:
    """parked: the reason, "" while the drafter may draft.  A parked one probes now and then.

    threshold: least share of sent tokens that must be accepted.
    """

    acceptance: Acceptance
    threshold: float
    speed: Speed = field(default_factory=Speed)
    window: deque[bool] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    parked: str = ""
    #: Tokens that one more draft is expected to add, as the drafts so far promised.
    worth: float = 1.0
    n_drafted: int = 0
    n_accepted: int = 0
    measured: Measured = field(default_factory=Measured)
    #: Tokens, and plain passes that take as long as these took, which are remembered already.
    tokens_noted: int = 0
    passes_noted: float = 0.0
    _n_below: int = 0
    _n_drafts_below: int = 0
    _n_idle: int = 0
    _probing: int = 0
    _probe_in: int = _PROBE_EVERY
    _probe_every: float = float(_PROBE_EVERY)
    _probe: Speed = field(default_factory=Speed)
    _probe_is_longer: bool = False
    _n_probed: int = 0
    _n_probed_right: int = 0

    def may_draft(self) -> bool:
        """Asked once a step: whether it is on, or the time of a probe has come."""
        if not self.parked or self._probing:
            return True
        self._probe_in -= 1
        if self._probe_in > 0:
            return False
        self._probing, self._probe, self._probe_is_longer = PROBE_STEPS, Speed(), False
        self._n_probed = self._n_probed_right = 0
        self.acceptance.reopen()
        return True

    def judged(self, n_right: int, n_judged: int) -> None:
        """Of a guess, sent or not, so many tokens could be judged and so many were right."""
        self._n_probed += n_judged
        self._n_probed_right += n_right

    def promise(self, worth: float) -> None:
        self.worth += (worth - self.worth) / 16.0

    def observe(self, n_sent: int, n_accepted: int, seconds: float, plain_s: float) -> None:
        """A step that this drafter drafted for; n_sent 0: nothing of its draft was worth a try."""
        self.n_drafted += n_sent
        self.n_accepted += n_accepted
        self.window.extend(i < n_accepted for i in range(n_sent))
        too_low = len(self.window) >= _STAYS and self._share_accepted < self.threshold
        self._n_below = self._n_below + n_sent if too_low else 0
        self._n_drafts_below = self._n_drafts_below + bool(n_sent) if too_low else 0
        self._n_idle = 0 if n_sent else self._n_idle + 1
        self.speed.add(n_accepted + 1, seconds, plain_s)
        if self._probing:
            self._probe.add(n_accepted + 1, seconds, plain_s)

    def allows(self, n_sent: int, n_expected: float) -> bool:
        """Whether sending so many, of which so many should be accepted, respects the threshold.

        What earlier drafts had accepted beyond it is there to be spent.
        """
        if self.threshold <= 0.0:
            return True
        wanted = min(self.threshold + _ABOVE_THRESHOLD, 1.0)
        spare = sum(self.window) - wanted * len(self.window)
        return n_expected + max(spare, 0.0) >= wanted * n_sent

    def judge(self, look_s: float, plain_s: float) -> None:
        """After observe(): park, go on, or end a probe.

        look_s: seconds of a probe's drafting.  plain_s: those of a plain pass.
        """
        if self._probing:
            self._probing -= 1
            if not self._probing:
                self._judge_probe(plain_s)
        elif self._n_below >= _STAYS and self._n_drafts_below >= _STAYS_DRAFTS:
            self._park(LOW_ACCEPTANCE, look_s, plain_s)
        elif any(self.speed.steps >= n and self.speed.gain < g for n, g in _PATIENCE):
            self._park(DOES_NOT_PAY, look_s, plain_s)
        elif self._n_idle >= _IDLE:
            too_low = self.acceptance.of_depth(0) < self.threshold
            self._park(LOW_ACCEPTANCE if too_low else DOES_NOT_PAY, look_s, plain_s)

    def begin_parked(self, reason: str, look_s: float, plain_s: float) -> None:
        """As earlier requests came out.  Another text may well be better: look when it is cheap."""
        self.parked = reason
        self._probe_in = 1 + _affordable_after(look_s, plain_s)

    def _park(self, reason: str, look_s: float, plain_s: float) -> None:
        self.parked = reason
        self._wait(_affordable_after(look_s, plain_s))
        self.window.clear()
        self._n_below = self._n_drafts_below = self._n_idle = 0

    def _wait(self, n_steps: int) -> None:
        """Until the next probe: at least so many steps, and longer each time."""
        self._probe_in = int(max(self._probe_every, n_steps))
        self._probe_every = min(self._probe_in * _PROBE_GROWTH, _PROBE_EVERY_MAX)

    def _judge_probe(self, plain_s: float) -> None:
        refused = len(self.window) >= _PROBED and self._share_accepted < self.threshold
        if self._probe.gain >= _RESUME_GAIN and not refused:
            self.parked, self.speed = "", self._probe
            return
        all_right = self._n_probed >= PROBE_STEPS and self._n_probed_right == self._n_probed
        if all_right and not self._probe_is_longer:
            # The estimates have yet to learn of it: look on before anything is sent.
            self._probing, self._probe_is_longer = _LONGER_PROBE, True
            return
        if refused:
            self.window.clear()
        self._wait(_affordable_after(max(self._probe.seconds - self._probe.plain_s, 0.0), plain_s))

    @property
    def _share_accepted(self) -> float:
        return sum(self.window) / len(self.window)


def _affordable_after(seconds: float, plain_s: float) -> int:
    """Plain steps in which so much is no more than probing may cost."""
    return min(int(seconds / (PROBE_BUDGET * plain_s)), _WAIT_MAX)
