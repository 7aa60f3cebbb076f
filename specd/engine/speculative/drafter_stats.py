"""One drafter in one request: how often it is right, and what its drafts are worth."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.engine.speculative.acceptance import TextAcceptance

DOES_NOT_PAY = "does_not_pay"
LOW_ACCEPTANCE = "low_acceptance"

#: Memory of the running speeds, in steps.
_SPEED_MEMORY = 32.0
#: Drafts that the running mean of what a draft is worth remembers.
_WORTH_MEMORY = 24.0
#: Tokens that a draft is taken to be worth before anything is known, and as how many drafts that
#: counts; a history of losses does not change it, for texts, versions and machines do.
UNTRIED_WORTH, _UNTRIED_WEIGHT = 0.1, 2.0
#: Tokens over which acceptance is measured, and how many it takes to fall below a threshold.
_WINDOW, _MIN_JUDGED = 48, 32
#: Where a threshold is missed, the drafter is probed once in so many steps.
_PROBE_EVERY = 16
#: Drafts are kept so short that their expected acceptance exceeds the threshold by this much.
_THRESHOLD_MARGIN = 0.05


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
class Worth:
    """The running mean of what drafts are expected to add, less their price, in tokens.

    It starts from a guess that counts as `weight` drafts, so that a drafter of no use is given up
    after a few.
    """

    mean: float = UNTRIED_WORTH
    weight: float = _UNTRIED_WEIGHT

    def add(self, worth: float, memory: float) -> None:
        """Note one more draft.  memory: the number of drafts that the mean remembers.

        One draft speaks against the drafter at most as much as an untried one speaks for it: a
        request that expects too many tokens per second at first must not park it at once.
        """
        self.weight = min(self.weight + 1.0, memory)
        self.mean += (max(worth, -UNTRIED_WORTH) - self.mean) / self.weight


@dataclass(slots=True)
class MeasuredSteps:
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
class Threshold:
    """The least share of drafted tokens that must be accepted, as a user has set it.

    n_unsent: drafts in a row of which nothing was sent.  n_waited: steps since the last probe.
    window: of the last tokens that the target judged, which were accepted.
    """

    min_acceptance: float
    n_unsent: int = 0
    n_waited: int = 0
    window: deque[bool] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    @property
    def is_missed(self) -> bool:
        """Whether recent acceptance is below it, or many drafts in a row were too poor to send."""
        n = len(self.window)
        return self.n_unsent >= _MIN_JUDGED or (
            n >= _MIN_JUDGED and sum(self.window) < self.min_acceptance * n
        )

    def allows(self, n_sent: int, n_expected: float) -> bool:
        """Whether the threshold allows n_sent tokens, of which n_expected should be accepted.

        Tokens that earlier drafts had accepted beyond the threshold count in its favour.
        """
        wanted = min(self.min_acceptance + _THRESHOLD_MARGIN, 1.0)
        spare = sum(self.window) - wanted * len(self.window)
        return n_expected + max(spare, 0.0) >= wanted * n_sent

    def may_probe(self) -> bool:
        """Whether to draft once although the threshold is missed; call it once a step."""
        self.n_waited = (self.n_waited + 1) % _PROBE_EVERY
        return not self.n_waited

    def observe(self, n_sent: int, n_accepted: int) -> None:
        """Note a draft and how many of its tokens were sent; none is 0."""
        self.n_unsent = 0 if n_sent else self.n_unsent + 1
        self.observe_judged(n_sent, n_accepted)

    def observe_judged(self, n_judged: int, n_accepted: int) -> None:
        """Note tokens that the target judged, sent or not."""
        self.window.extend(at < n_accepted for at in range(n_judged))


@dataclass(slots=True)
class DrafterStats:
    """One drafter in one request; it is parked while its drafts are not worth their price.

    worth: tokens that one more draft is expected to add, less its price.
    threshold: None where the user has set none.
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
        """Why it drafts only in probes; "" while it drafts normally."""
        if self.threshold is not None and self.threshold.is_missed:
            return LOW_ACCEPTANCE
        return DOES_NOT_PAY if self.worth.mean <= 0.0 else ""

    def allows(self, n_sent: int, n_expected: float) -> bool:
        """Whether the threshold allows a draft of which n_expected tokens should be accepted."""
        return self.threshold is None or self.threshold.allows(n_sent, n_expected)

    def observe_worth(self, worth: float) -> None:
        """Note what a finished draft was expected to add, less its price."""
        self.worth.add(worth, _WORTH_MEMORY)

    def learn(
        self, confidences: Sequence[float], n_right: int, n_judged: int, *, teaches: bool
    ) -> None:
        """Learn from a draft, sent or not, of which the target's text judged n_judged tokens.

        teaches: whether later requests learn from it, too.
        """
        if self.threshold is not None and self.threshold.is_missed:
            # Nothing is sent now that could show that the text has become easier.
            self.threshold.observe_judged(n_judged, n_right)
        self.acceptance.observe(confidences, n_right, n_judged, teaches=teaches)

    def observe(self, n_sent: int, n_accepted: int, seconds: float, plain_s: float) -> None:
        """Note a step that this drafter drafted for; n_sent is 0 if its draft was not sent."""
        self.n_drafted += n_sent
        self.n_accepted += n_accepted
        if self.threshold is not None:
            self.threshold.observe(n_sent, n_accepted)
        self.speed.add(n_accepted + 1, seconds, plain_s)
