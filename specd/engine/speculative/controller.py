"""How many tokens to draft, request by request and step by step, down to none.

Pure: every method is a function of what was observed before, no clock and no randomness, so a
recorded trace replays exactly (trace.py).  The rules are explained in docs/speculation.md.

While drafting, the length is the k that maximises tokens(k) − λ·seconds(k), with λ the request's
own tokens per second: what counts is the ratio of sums (Dinkelbach), not the sum of ratios.
Whether to draft at all is decided by what drafting really gained against plain passes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specd.core import SpeculationMode, SpeculationState
from specd.engine.speculative.acceptance import Acceptance
from specd.engine.speculative.cost_model import CostModel

#: Longest draft the controller asks for by itself.
MAX_DRAFT = 16
#: How far ahead of the tokens drafted so far a longer draft is still considered.
_LOOKAHEAD = 8
#: Memory of the running speeds, in steps.
_SPEED_MEMORY = 32.0
#: Park after this many drafting steps if the measured gain is below the figure beside it.
_PATIENCE = ((4, 0.6), (10, 0.8), (24, 0.95))
#: A probe must gain this much before drafting resumes, so that noise does not flap.
_RESUME_GAIN = 1.03
_PROBE_STEPS = 2
_PROBE_EVERY = 4
#: Each probe in vain makes the next wait longer by this, or by what it cost.
_PROBE_GROWTH = 1.5
_PROBE_EVERY_MAX = 2048
#: One step in so many is plain, so that what drafting is compared with stays fresh.
_PLAIN_EVERY = 64
#: Share of plain decoding time that probing may cost.
_PROBE_BUDGET = 0.01
#: Drafted tokens over which the acceptance threshold is measured, and the fewest that decide.
_WINDOW, _WINDOW_MIN = 48, 32

DOES_NOT_PAY = "does_not_pay"
LOW_ACCEPTANCE = "low_acceptance"


@dataclass(slots=True)
class Speed:
    """Tokens per second of drafting steps, and what plain passes would have taken instead."""

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
class RequestControl:
    """The controller's notebook on one request."""

    n_max: int
    mode: SpeculationMode
    band: int
    acceptance: Acceptance
    speed: Speed = field(default_factory=Speed)
    window: deque[bool] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    state: SpeculationState = SpeculationState.ACTIVE
    reason: str = ""
    probing: int = 0
    probe_in: int = _PROBE_EVERY
    probe_every: float = _PROBE_EVERY
    probe: Speed = field(default_factory=Speed)
    other_rows: int = 0
    n_others: int = 0
    n_missed: int = 0
    since_plain: int = 0


def temperature_band(temperature: float) -> int:
    """Acceptance differs by temperature: 0, up to 0.5, up to 1, above."""
    return 0 if temperature <= 0 else 1 if temperature <= 0.5 else 2 if temperature <= 1 else 3


class Controller:
    """Decides for all requests of one engine; its estimates outlive the requests."""

    def __init__(self, costs: CostModel, threshold: float) -> None:
        """threshold: accepted ÷ drafted below which a request stops drafting."""
        self.costs = costs
        self._threshold = threshold
        self._bands: dict[int, Acceptance] = {}
        self._requests: dict[int, RequestControl] = {}
        #: What drafting last came to in each band: where a new request starts.
        self._parked_bands: dict[int, str] = {}

    # ------------------------------------------------------------------ life of a request

    def open(
        self, request_id: int, n_max: int | None, mode: SpeculationMode, temperature: float
    ) -> None:
        band = temperature_band(temperature)
        learned = self._bands.setdefault(band, Acceptance())
        bound = MAX_DRAFT if n_max is None else max(0, min(n_max, MAX_DRAFT))
        control = RequestControl(bound, mode, band, learned.inherit())
        if bound == 0:
            control.state = SpeculationState.OFF
        elif mode is SpeculationMode.AUTO and (reason := self._parked_bands.get(band)):
            control.state, control.reason = SpeculationState.PARKED, reason
            # Another text may well be a better one: look as soon as a look is cheap.
            control.probe_in = 1 + self._affordable_after(self.costs.draft_s(_PROBE_STEPS))
        self._requests[request_id] = control

    def close(self, request_id: int) -> None:
        del self._requests[request_id]

    def state(self, request_id: int) -> tuple[SpeculationState, str]:
        control = self._requests[request_id]
        return control.state, control.reason

    # ------------------------------------------------------------------ decisions

    def plan(self, request_id: int, n_missed: int, n_others: int, other_rows: int) -> int:
        """Most tokens to draft in this step; 0 is a plain step.

        n_missed: tokens the drafter has yet to read, beyond the one it always reads.
        n_others, other_rows: other slots that decode in this pass, and the rows they bring.
        """
        control = self._requests[request_id]
        control.n_missed, control.n_others, control.other_rows = n_missed, n_others, other_rows
        if control.state is SpeculationState.OFF:
            return 0
        if control.mode is SpeculationMode.FIXED:
            return control.n_max
        if control.state is SpeculationState.PARKED and not control.probing:
            control.probe_in -= 1
            if control.probe_in > 0:
                return 0
            control.probing, control.probe = _PROBE_STEPS, Speed()
        control.since_plain += 1
        if control.since_plain > _PLAIN_EVERY:
            control.since_plain = 0
            return 0
        return control.n_max

    def extend(self, request_id: int, margins: list[float]) -> bool:
        """Whether the draft is worth one more token, given the margins of those it has."""
        control = self._requests[request_id]
        n = len(margins)
        if n >= control.n_max:
            return False
        if control.mode is SpeculationMode.FIXED:
            return True
        rate = self._rate(control)
        chance, tokens, best = 1.0, 1.0, 1.0 - rate * self._verify_s(control, 0)
        for depth, margin in enumerate(margins):
            chance *= control.acceptance.of_margin(margin)
            tokens += chance
            best = max(best, tokens - rate * self._verify_s(control, depth + 1))
        for depth in range(n, min(n + _LOOKAHEAD, control.n_max)):
            chance *= control.acceptance.of_depth(depth)
            tokens += chance
            more_s = self._draft_s(control, depth + 1 - n) + self._verify_s(control, depth + 1)
            if tokens - rate * more_s > best:
                return True
        return False

    def choose(self, request_id: int, margins: list[float]) -> int:
        """How many of the drafted tokens to send to the target, 0 included."""
        control = self._requests[request_id]
        if control.mode is SpeculationMode.FIXED:
            return len(margins)
        rate = self._rate(control)
        chance, tokens = 1.0, 1.0
        best, best_value = 0, 1.0 - rate * self._verify_s(control, 0)
        for depth, margin in enumerate(margins):
            chance *= control.acceptance.of_margin(margin)
            tokens += chance
            if (value := tokens - rate * self._verify_s(control, depth + 1)) > best_value:
                best, best_value = depth + 1, value
        return best

    def _rate(self, control: RequestControl) -> float:
        """λ: tokens per second of this request, never less than plain decoding gives."""
        plain = 1.0 / self._verify_s(control, 0)
        speed = control.speed
        return max(plain, speed.tokens / speed.seconds) if speed.seconds else plain

    def _verify_s(self, control: RequestControl, n_draft: int) -> float:
        """Seconds of a pass that this slot answers for with 1 + n_draft rows.

        An equal share of the pass without its draft, and all that its draft adds to it.
        """
        undrafted = control.other_rows + 1
        base_s = self.costs.target_s(undrafted)
        added_s = self.costs.target_s(undrafted + n_draft) - base_s
        return base_s / (control.n_others + 1) + max(added_s, 0.0)

    def _draft_s(self, control: RequestControl, n_tokens: int, n_missed: int = 0) -> float:
        """Seconds of drafting that this slot answers for: drafter passes are shared as well."""
        return self.costs.draft_s(n_tokens, n_missed) / (control.n_others + 1)

    # ------------------------------------------------------------------ observations

    def observe_target(self, width: int, seconds: float) -> None:
        self.costs.observe_target(width, seconds)

    def observe_draft(self, n_steps: int, n_missed: int, seconds: float) -> None:
        self.costs.observe_draft(n_steps, n_missed, seconds)

    def observe_step(
        self, request_id: int, margins: list[float], n_sent: int, n_accepted: int
    ) -> None:
        """One step in which `margins` tokens were drafted, n_sent verified, n_accepted kept."""
        control = self._requests[request_id]
        control.acceptance.observe(margins[:n_sent], n_accepted)
        if control.mode is SpeculationMode.AUTO:
            # A fixed length is a bench's; what it sees must not teach those it is compared with.
            self._bands[control.band].observe(margins[:n_sent], n_accepted)
        control.window.extend(i < n_accepted for i in range(n_sent))
        seconds = self._draft_s(control, len(margins), control.n_missed)
        seconds += self._verify_s(control, n_sent)
        plain_s = self._verify_s(control, 0)
        control.speed.add(n_accepted + 1, seconds, plain_s)
        if control.mode is SpeculationMode.FIXED:
            return
        if control.probing:
            control.probe.add(n_accepted + 1, seconds, plain_s)
            control.probing -= 1
            if not control.probing:
                self._judge_probe(control)
        else:
            self._judge(control)

    def _judge(self, control: RequestControl) -> None:
        """Park a request whose drafts are refused too often or cost more than they bring."""
        if len(control.window) >= _WINDOW_MIN and self._rate_accepted(control) < self._threshold:
            self._park(control, LOW_ACCEPTANCE)
        elif any(control.speed.steps >= n and control.speed.gain < g for n, g in _PATIENCE):
            self._park(control, DOES_NOT_PAY)
        elif control.speed.steps >= _PATIENCE[-1][0]:
            self._parked_bands.pop(control.band, None)

    def _park(self, control: RequestControl, reason: str) -> None:
        control.state, control.reason = SpeculationState.PARKED, reason
        look_s = self.costs.draft_s(_PROBE_STEPS)
        control.probe_every = max(_PROBE_EVERY, self._affordable_after(look_s))
        control.probe_in = int(control.probe_every)
        self._parked_bands[control.band] = reason
        control.window.clear()

    def _affordable_after(self, seconds: float) -> int:
        """Plain steps in which so much is no more than probing may cost."""
        return min(int(seconds / (_PROBE_BUDGET * self.costs.target_s(1))), _PROBE_EVERY_MAX)

    def _judge_probe(self, control: RequestControl) -> None:
        probe = control.probe
        refused = bool(control.window) and self._rate_accepted(control) < self._threshold
        if probe.gain >= _RESUME_GAIN and not refused:
            control.state, control.reason = SpeculationState.ACTIVE, ""
            control.speed = probe
            return
        lost_s = max(probe.seconds - probe.plain_s, 0.0)
        longer = max(control.probe_every * _PROBE_GROWTH, self._affordable_after(lost_s))
        control.probe_every = min(longer, _PROBE_EVERY_MAX)
        control.probe_in = int(control.probe_every)
        control.window.clear()

    @staticmethod
    def _rate_accepted(control: RequestControl) -> float:
        return sum(control.window) / len(control.window)
