"""Statistics of one drafter in one request: acceptance, speed, and the worth of its drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.engine.speculative.acceptance import TextAcceptance

DOES_NOT_PAY = "does_not_pay"
LOW_ACCEPTANCE = "low_acceptance"

#: Memory of the running speeds, in steps.
_SPEED_MEMORY = 32.0
#: Memory of the running mean of a draft's worth, in drafts.
_WORTH_MEMORY = 24.0
#: Worth of a draft in tokens before anything is known, and its weight in drafts.  Losses in the
#: history do not change it, because texts, versions and machines change.
UNTRIED_WORTH, _UNTRIED_WEIGHT = 0.1, 2.0
#: Tokens over which acceptance is measured, and the fewest that can miss a threshold.
_WINDOW, _MIN_JUDGED = 48, 32
#: While the threshold is missed, the drafter is probed once in this many steps.
_PROBE_EVERY = 16
#: Drafts are cut until their expected acceptance exceeds the threshold by this much.
_THRESHOLD_MARGIN = 0.05


@dataclass(slots=True)
class Speed:
    """Tokens and seconds of recent steps, with the seconds of the same tokens in plain passes."""

    tokens: float = 0.0
    seconds: float = 0.0
    plain_s: float = 0.0
    steps: float = 0.0

    def add(self, tokens: int, seconds: float, plain_s: float) -> None:
        """Note a step.  plain_s: seconds of one plain pass."""
        keep = 1.0 - 1.0 / _SPEED_MEMORY
        self.tokens = self.tokens * keep + tokens
        self.seconds = self.seconds * keep + seconds
        self.plain_s = self.plain_s * keep + plain_s * tokens
        self.steps = self.steps * keep + 1.0

    @property
    def gain(self) -> float:
        """Return plain seconds ÷ seconds of the same tokens; 1 before anything is known."""
        return self.plain_s / self.seconds if self.seconds else 1.0


@dataclass(slots=True)
class Worth:
    """The running mean of the tokens that drafts are expected to add, less their price.

    It starts from a guess that counts as few drafts, so that a useless drafter is parked soon.
    """

    mean: float = UNTRIED_WORTH
    weight: float = _UNTRIED_WEIGHT

    def add(self, worth: float, memory: float) -> None:
        """Note one more draft.  memory: the number of drafts that the mean remembers.

        One draft lowers the mean at most as if it were worth −2 × UNTRIED_WORTH.  Otherwise a
        request that at first expects too many tokens per second could park the drafter at once.
        """
        self.weight = min(self.weight + 1.0, memory)
        self.mean += (max(worth, -2.0 * UNTRIED_WORTH) - self.mean) / self.weight


@dataclass(slots=True)
class MeasuredSteps:
    """Measured times of the steps of one request in which one drafter drafted.

    seconds: of these steps.  plain_s: sum over these steps of the seconds of one plain pass.
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
        """Return the number of plain passes that take as long as these steps."""
        return self.seconds * self.n_steps / self.plain_s if self.plain_s else 0.0


@dataclass(slots=True)
class Threshold:
    """The acceptance threshold that the user set: accepted ÷ drafted tokens.

    n_unsent: drafts in a row of which nothing was sent.  n_waited: steps since the last probe.
    window: for each of the last judged tokens, whether it was accepted.
    """

    min_acceptance: float
    n_unsent: int = 0
    n_waited: int = 0
    window: deque[bool] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    @property
    def is_missed(self) -> bool:
        """Return whether recent acceptance is too low, or too many drafts in a row were unsent."""
        n = len(self.window)
        return self.n_unsent >= _MIN_JUDGED or (
            n >= _MIN_JUDGED and sum(self.window) < self.min_acceptance * n
        )

    def allows(self, n_sent: int, n_expected: float) -> bool:
        """Return whether n_sent tokens are allowed if n_expected should be accepted."""
        # Tokens that were accepted earlier beyond the threshold count in favour of the draft.
        wanted = min(self.min_acceptance + _THRESHOLD_MARGIN, 1.0)
        spare = sum(self.window) - wanted * len(self.window)
        return n_expected + max(spare, 0.0) >= wanted * n_sent

    def may_probe(self) -> bool:
        """Return whether to draft once although the threshold is missed; call it once a step."""
        self.n_waited = (self.n_waited + 1) % _PROBE_EVERY
        return not self.n_waited

    def observe(self, n_sent: int, n_accepted: int) -> None:
        self.n_unsent = 0 if n_sent else self.n_unsent + 1
        self.observe_judged(n_sent, n_accepted)

    def observe_judged(self, n_judged: int, n_accepted: int) -> None:
        """Note tokens that the target judged, sent or not."""
        self.window.extend(at < n_accepted for at in range(n_judged))


@dataclass(slots=True)
class DrafterStats:
    """Statistics of one drafter in one request.

    worth: tokens that one more draft is expected to add, less its price.
    threshold: None if the user set none.
    """

    acceptance: TextAcceptance
    worth: Worth
    threshold: Threshold | None = None
    speed: Speed = field(default_factory=Speed)
    n_drafted: int = 0
    n_accepted: int = 0
    measured: MeasuredSteps = field(default_factory=MeasuredSteps)

    @property
    def parked(self) -> str:
        """Return why the drafter drafts only in probes; "" while it drafts normally."""
        if self.threshold is not None and self.threshold.is_missed:
            return LOW_ACCEPTANCE
        return DOES_NOT_PAY if self.worth.mean <= 0.0 else ""

    def allows(self, n_sent: int, n_expected: float) -> bool:
        return self.threshold is None or self.threshold.allows(n_sent, n_expected)

    def observe_worth(self, worth: float) -> None:
        self.worth.add(worth, _WORTH_MEMORY)

    def learn(
        self, confidences: Sequence[float], n_right: int, n_judged: int, *, teaches: bool
    ) -> None:
        """Learn from a draft, sent or not, of which the target's text judged n_judged tokens.

        teaches: whether the estimates for later requests change as well.
        """
        if self.threshold is not None and self.threshold.is_missed:
            # No draft is sent now, so only unsent drafts can show that the text became easier.
            self.threshold.observe_judged(n_judged, n_right)
        self.acceptance.observe(confidences, n_right, n_judged, teaches=teaches)

    def observe(self, n_sent: int, n_accepted: int, seconds: float, plain_s: float) -> None:
        """Note a step in which this drafter drafted; n_sent is 0 if its draft was not sent."""
        self.n_drafted += n_sent
        self.n_accepted += n_accepted
        if self.threshold is not None:
            self.threshold.observe(n_sent, n_accepted)
        self.speed.add(n_accepted + 1, seconds, plain_s)
