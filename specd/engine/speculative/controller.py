"""How many tokens to draft, by whom, request by request and step by step, down to none.

Pure: every method is a function of what was observed before, no clock and no randomness, so a
recorded trace replays exactly (trace.py).  The rules are explained in docs/speculation.md.

The length is the k that maximises tokens(k) − λ·seconds(k), with λ the request's own tokens per
second: what counts is the ratio of sums (Dinkelbach), not the sum of ratios.  A draft model and
prompt lookup compete by that one figure.  Whether a drafter goes on at all is decided by what it
really gained against plain passes (track.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from specd.core import DrafterKind, PairHistory, SpeculationMode, SpeculationState
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.memory import BandMemory, Memory
from specd.engine.speculative.prospect import Best, Prospect, chances, share_out
from specd.engine.speculative.track import PROBE_BUDGET, PROBE_STEPS, Speed, Track

#: Longest draft the controller asks for by itself.
MAX_DRAFT = 16
#: After so many steps with drafts one is plain, so that what drafting is compared with stays fresh.
_PLAIN_EVERY = 64
#: Steps that the gain of earlier requests counts for in a new request's tokens per second.
_INHERITED_STEPS = 8

#: What a drafter is taken to gain before anything is known of it.
_UNTRIED_GAIN = 1.3
#: Tokens that an answer just begun is taken to have.
_TO_COME = 128
#: Tokens of an answer that was set no limit.
NO_LIMIT = 1 << 31

MODEL, LOOKUP = DrafterKind.MODEL, DrafterKind.LOOKUP
#: Whose tokens a plain step sends.
NOBODY = ""

#: (drafter, confidences, tokens that the target said too, tokens that what it said can judge).
Guess = tuple[str, Sequence[float], int, int]


@dataclass(slots=True)
class RequestControl:
    """The controller's notebook on one request.  tracks: who may draft, in order of preference."""

    n_max: int
    mode: SpeculationMode
    band: int
    tracks: dict[DrafterKind, Track]
    prospect: Prospect
    speed: Speed = field(default_factory=Speed)
    matches: Sequence[float] = ()
    found: Best = field(default_factory=Best)
    pass_s: float = 0.0
    n_missed: int = 0
    n_since_plain: int = 0
    n_said: int = 0


@dataclass(frozen=True, slots=True)
class _Offer:
    """A draft that a request could send.  chances: of each token, with those before it."""

    drafter: str
    rate: float
    chances: Sequence[float]
    track: Track | None
    n: int = 0

    def cut(self, n: int) -> _Offer:
        """To n tokens, or as many fewer as the threshold allows."""
        if self.track is not None:
            expected = list(accumulate(self.chances[:n]))
            while n and not self.track.allows(n, expected[n - 1]):
                n -= 1
        return replace(self, n=n)


def longest_draft(max_draft: int | None) -> int:
    """Of a pair whose drafts may have at most so many tokens."""
    return MAX_DRAFT if max_draft is None else max(0, min(max_draft, MAX_DRAFT))


def temperature_band(temperature: float) -> int:
    """Acceptance differs by temperature: 0, up to 0.5, up to 1, above."""
    return 0 if temperature <= 0 else 1 if temperature <= 0.5 else 2 if temperature <= 1 else 3


class Controller:
    """Decides for all requests of one engine; what it learned outlives them."""

    def __init__(
        self,
        costs: CostModel,
        threshold: float,
        history: PairHistory | None = None,
        max_draft: int | None = None,
    ) -> None:
        """threshold: accepted ÷ drafted below which a request stops drafting.

        history: what an earlier controller of the same pair had learned.
        max_draft: no draft is longer; None is MAX_DRAFT.
        """
        self.costs = costs
        self.longest = longest_draft(max_draft)
        self._threshold = threshold
        self._memory = Memory(history)
        self._requests: dict[int, RequestControl] = {}

    def history(self) -> PairHistory:
        """What the next controller of this pair should begin with."""
        return self._memory.history(self.costs)

    # ------------------------------------------------------------------ life of a request

    def open(
        self,
        request_id: int,
        n_max: int | None,
        mode: SpeculationMode,
        temperature: float,
        drafters: Sequence[str],
    ) -> None:
        """drafters: who is there and allowed; none at all is plain decoding."""
        bound = self.longest if n_max is None else max(0, min(n_max, self.longest))
        band = temperature_band(temperature)
        kinds = [DrafterKind(kind) for kind in drafters] if bound else []
        if mode is SpeculationMode.FIXED:
            kinds = kinds[:1]
        plain_s = self.costs.target_s(1)
        control = RequestControl(bound, mode, band, {}, Prospect(self.costs, 1.0 / plain_s, 0, 1))
        for kind in kinds:
            control.tracks[kind] = self._track(kind, self._memory.of(kind, band), mode)
        gain = max([1.0, *(self._memory.of(kind, band).gain or 1.0 for kind in kinds)])
        for _ in range(_INHERITED_STEPS):
            control.speed.add(1, plain_s / gain, plain_s)
        self._requests[request_id] = control

    def _track(self, kind: DrafterKind, memory: BandMemory, mode: SpeculationMode) -> Track:
        track = Track(memory.acceptance.inherit(), self._threshold)
        if memory.parked and mode is SpeculationMode.AUTO:
            track.begin_parked(memory.parked, self._look_s(kind, 0), self.costs.target_s(1))
        return track

    def close(self, request_id: int) -> None:
        control = self._requests.pop(request_id)
        if control.mode is SpeculationMode.FIXED:
            return
        for kind, track in control.tracks.items():
            self._memory.of(kind, control.band).end_request(track)

    def state(self, request_id: int) -> tuple[SpeculationState, str]:
        """Active while anybody drafts; the reason is why the model does not, where it does not.

        Lookup beside a parked model makes a request active only by finding something.
        """
        tracks = self._requests[request_id].tracks
        if not tracks:
            return SpeculationState.OFF, ""
        first = next(iter(tracks.values()))
        others = [t for t in tracks.values() if t is not first and not t.parked and t.n_drafted]
        if first.parked and not others:
            return SpeculationState.PARKED, first.parked
        return SpeculationState.ACTIVE, first.parked

    # ------------------------------------------------------------------ decisions

    def plan(
        self,
        request_id: int,
        n_missed: int,
        n_slots: int,
        matches: Sequence[float] = (),
        n_left: int = NO_LIMIT,
    ) -> int:
        """How many tokens the model may draft in this step at most; 0: it is not asked.

        n_missed: tokens the model has yet to read, beyond the one it always reads.
        n_slots: requests that decode in this step.  matches: confidences of what lookup has found.
        n_left: tokens that the answer may still have.
        """
        control = self._requests[request_id]
        control.matches, control.found = (), Best()
        if not control.tracks:
            return 0
        speed = control.speed.tokens / control.speed.seconds
        control.prospect = Prospect(self.costs, speed, n_missed, n_slots)
        control.n_missed = n_missed
        if control.mode is SpeculationMode.FIXED:
            control.matches = matches[: control.n_max] if LOOKUP in control.tracks else ()
            return control.n_max if MODEL in control.tracks else 0
        willing = [kind for kind, track in control.tracks.items() if track.may_draft()]
        control.n_since_plain += 1
        if control.n_since_plain > _PLAIN_EVERY:
            return 0
        if LOOKUP in willing:
            control.matches = matches[: control.n_max]
            control.found = control.prospect.best_of(control.tracks[LOOKUP], control.matches)
        # Where nothing was found the model is asked whatever it promised: else it never would be
        # again, once its drafts were worth less than nothing.
        if MODEL not in willing or not self._reading_pays(control, n_missed, n_left):
            return 0
        promised = max(control.tracks[MODEL].worth, 0.0)
        return control.n_max if promised >= control.found.worth else 0

    def _reading_pays(self, control: RequestControl, n_missed: int, n_left: int) -> bool:
        """Whether what the model has to read first is paid for by the tokens that may still come.

        An answer is taken to go on for as long as it has lasted.
        """
        track = control.tracks[MODEL]
        gain = self._memory.of(MODEL, control.band).gain or _UNTRIED_GAIN
        if track.speed.steps >= _INHERITED_STEPS:
            gain = track.speed.gain
        saved = 0.0 if track.parked else 1.0 - 1.0 / max(gain, 1.0)
        n_to_come = min(n_left, max(control.n_said, _TO_COME))
        to_come_s = n_to_come * self.costs.target_s(1)
        return self.costs.reading_s(n_missed) <= max(saved, PROBE_BUDGET) * to_come_s

    def extend(self, request_id: int, margins: Sequence[float]) -> bool:
        """Whether the model's draft is worth one more token, given the margins of those it has."""
        control = self._requests[request_id]
        if len(margins) >= control.n_max:
            return False
        if control.mode is SpeculationMode.FIXED:
            return True
        return control.prospect.promises_more(
            control.tracks[MODEL], margins, control.n_max, control.found.worth
        )

    def choose(self, drafts: Sequence[tuple[int, Sequence[float]]]) -> list[tuple[str, int]]:
        """Whose draft each request sends, and how much of it.

        drafts: of every request that decodes in this step, the margins of what the model drafted
        for it, if anything.
        """
        controls = [self._requests[request_id] for request_id, _ in drafts]
        offers = [self._offer(c, margins) for c, (_, margins) in zip(controls, drafts, strict=True)]
        auto = [at for at, offer in enumerate(offers) if not offer.n]
        rates = [offers[at].rate for at in auto if offers[at].chances]
        lengths = share_out(
            self.costs,
            statistics.fmean(rates) if rates else 0.0,
            len(drafts),
            [offers[at].chances for at in auto],
        )
        for at, n in zip(auto, lengths, strict=True):
            offers[at] = offers[at].cut(n)
        n_rows = sum(offer.n for offer in offers)
        plain_s = self.costs.target_s(len(drafts))
        per_row_s = (self.costs.target_s(len(drafts) + n_rows) - plain_s) / n_rows if n_rows else 0
        for control, offer in zip(controls, offers, strict=True):
            # An equal share of the plain pass, and of what all drafts add to it by their rows.
            control.pass_s = plain_s / len(drafts) + max(per_row_s, 0.0) * offer.n
        return [(offer.drafter, offer.n) if offer.n else (NOBODY, 0) for offer in offers]

    def _offer(self, control: RequestControl, margins: Sequence[float]) -> _Offer:
        if control.mode is SpeculationMode.FIXED:
            sent_by, n = (MODEL, len(margins)) if margins else (LOOKUP, len(control.matches))
            return _Offer(sent_by, 0.0, [], None, n)
        rate = control.prospect.rate
        if margins:
            track, prospect = control.tracks[MODEL], control.prospect
            drafted = prospect.drafted(track, margins)
            track.promise(drafted.worth - prospect.price(len(margins)))
            if drafted.worth >= control.found.worth:
                return _Offer(MODEL, rate, [*chances(track.acceptance, margins)], track)
        if control.matches:
            track = control.tracks[LOOKUP]
            return _Offer(LOOKUP, rate, [*chances(track.acceptance, control.matches)], track)
        return _Offer(NOBODY, rate, [], None)

    # ------------------------------------------------------------------ observations

    def observe_target(self, width: int, seconds: float) -> None:
        self.costs.observe_target(width, seconds)

    def observe_draft(self, n_steps: int, n_missed: int, seconds: float) -> None:
        self.costs.observe_draft(n_steps, n_missed, seconds)

    def observe_step(
        self, request_id: int, sent_by: str, n_sent: int, n_accepted: int, guesses: Sequence[Guess]
    ) -> None:
        """One step of a request: n_sent tokens of sent_by were verified, n_accepted kept.

        guesses: all that was guessed for it, sent or not; the text judges the unsent for nothing.
        """
        control = self._requests[request_id]
        self._learn(control, guesses)
        control.n_said += n_accepted + 1
        n_drafted = next((len(guess[1]) for guess in guesses if guess[0] == MODEL), 0)
        plain_s, pass_s = control.prospect.plain_s, control.pass_s
        draft_s = control.prospect.draft_s(n_drafted)
        control.speed.add(n_accepted + 1, pass_s + draft_s, plain_s)
        if not n_sent and not n_drafted:
            control.n_since_plain = 0
        if n_drafted and sent_by != MODEL:
            # Its draft was made and not sent: that was its price, and brought nothing.
            self._judge(control, MODEL, 0, 0, plain_s + draft_s)
        elif n_drafted:
            self._judge(control, MODEL, n_sent, n_accepted, pass_s + draft_s)
        if sent_by == LOOKUP:
            self._judge(control, LOOKUP, n_sent, n_accepted, pass_s)

    def measure(
        self, request_id: int, kind: DrafterKind, tokens: int, seconds: float, plain_s: float
    ) -> None:
        """A step that the drafter drafted for, by the clock.  Nothing is decided by it now.

        plain_s: seconds that a plain pass would have taken.  A request that has ended is ignored.
        """
        control = self._requests.get(request_id)
        if control is not None and kind in control.tracks:
            control.tracks[kind].measured.add(tokens, seconds, plain_s)

    def _judge(
        self,
        control: RequestControl,
        kind: DrafterKind,
        n_sent: int,
        n_accepted: int,
        step_s: float,
    ) -> None:
        track, plain_s = control.tracks[kind], control.prospect.plain_s
        track.observe(n_sent, n_accepted, step_s, plain_s)
        if control.mode is SpeculationMode.AUTO:
            was_parked = track.parked
            track.judge(self._look_s(kind, control.n_missed), plain_s)
            if track.parked and not was_parked:
                self._memory.of(kind, control.band).note_parked(track)

    def _learn(self, control: RequestControl, guesses: Sequence[Guess]) -> None:
        for drafter, confidences, n_right, n_judged in guesses:
            kind = DrafterKind(drafter)
            if kind not in control.tracks:
                continue
            control.tracks[kind].acceptance.observe(confidences, n_right, n_judged)
            control.tracks[kind].judged(n_right, n_judged)
            if control.mode is SpeculationMode.AUTO:
                # A fixed length is a bench's; it must not teach those it is compared with.
                memory = self._memory.of(kind, control.band)
                memory.acceptance.observe(confidences, n_right, n_judged)

    def _look_s(self, kind: DrafterKind, n_missed: int) -> float:
        """Seconds that drafting for one probe takes; what lookup finds is free."""
        return self.costs.draft_s(PROBE_STEPS, n_missed) if kind is MODEL else 0.0
