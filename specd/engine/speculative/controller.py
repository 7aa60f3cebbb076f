"""How many tokens to draft, by whom, request by request and step by step, down to none.

Pure: every method is a function of what was observed before, no clock and no randomness, so a
recorded trace replays exactly (trace.py).  The rules are explained in docs/speculation.md.

The length is the k that maximises tokens(k) − λ·seconds(k), with λ the request's own tokens per
second: what counts is the ratio of sums (Dinkelbach), not the sum of ratios.  A draft model and
prompt lookup compete by that one figure.  Whether a drafter goes on at all is decided by what it
really gained against plain passes (track.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specd.core import DrafterKind, PairHistory, SpeculationMode, SpeculationState
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.memory import BandMemory, Memory
from specd.engine.speculative.prospect import Best, Prospect
from specd.engine.speculative.track import PROBE_STEPS, Speed, Track

#: Longest draft the controller asks for by itself.
MAX_DRAFT = 16
#: After so many steps with drafts one is plain, so that what drafting is compared with stays fresh.
_PLAIN_EVERY = 64
#: Steps that the gain of earlier requests counts for in a new request's tokens per second.
_INHERITED_STEPS = 8

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
    found: Best = field(default_factory=Best)
    n_missed: int = 0
    n_since_plain: int = 0


def temperature_band(temperature: float) -> int:
    """Acceptance differs by temperature: 0, up to 0.5, up to 1, above."""
    return 0 if temperature <= 0 else 1 if temperature <= 0.5 else 2 if temperature <= 1 else 3


class Controller:
    """Decides for all requests of one engine; what it learned outlives them."""

    def __init__(
        self, costs: CostModel, threshold: float, history: PairHistory | None = None
    ) -> None:
        """threshold: accepted ÷ drafted below which a request stops drafting.

        history: what an earlier controller of the same pair had learned.
        """
        self.costs = costs
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
        bound = MAX_DRAFT if n_max is None else max(0, min(n_max, MAX_DRAFT))
        band = temperature_band(temperature)
        kinds = [DrafterKind(kind) for kind in drafters] if bound else []
        if mode is SpeculationMode.FIXED:
            kinds = kinds[:1]
        plain_s = self.costs.target_s(1)
        control = RequestControl(
            bound, mode, band, {}, Prospect(self.costs, 1.0 / plain_s, 0, 0, 0)
        )
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
        """Active while anybody may draft; else the reason of the first that was asked."""
        tracks = self._requests[request_id].tracks.values()
        if not tracks:
            return SpeculationState.OFF, ""
        reasons = [track.parked for track in tracks]
        if "" in reasons:
            return SpeculationState.ACTIVE, ""
        return SpeculationState.PARKED, reasons[0]

    # ------------------------------------------------------------------ decisions

    def plan(
        self,
        request_id: int,
        n_missed: int,
        n_others: int,
        other_rows: int,
        matches: Sequence[float] = (),
    ) -> tuple[str, int]:
        """Who drafts in this step and how many tokens at most; NOBODY and 0 for a plain step.

        n_missed: tokens the draft model has yet to read, beyond the one it always reads.
        n_others, other_rows: other slots that decode in this pass, and the rows they bring.
        matches: confidences of what lookup has found, one per token.
        """
        control = self._requests[request_id]
        if not control.tracks:
            return NOBODY, 0
        speed = control.speed.tokens / control.speed.seconds
        control.prospect = Prospect(self.costs, speed, n_missed, n_others, other_rows)
        control.n_missed, control.found = n_missed, Best()
        if control.mode is SpeculationMode.FIXED:
            return _fixed(control, matches)
        willing = [kind for kind, track in control.tracks.items() if track.may_draft()]
        control.n_since_plain += 1
        if control.n_since_plain > _PLAIN_EVERY:
            return NOBODY, 0
        if matches and LOOKUP in willing:
            track = control.tracks[LOOKUP]
            control.found = control.prospect.best_of(track, matches[: control.n_max])
        if MODEL in willing and control.tracks[MODEL].worth >= control.found.worth:
            return MODEL, control.n_max
        return (LOOKUP, control.found.n) if control.found.n else (NOBODY, 0)

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

    def choose(self, request_id: int, margins: Sequence[float]) -> tuple[str, int]:
        """Whose draft goes to the target and how much of it, after the model has drafted."""
        control = self._requests[request_id]
        if control.mode is SpeculationMode.FIXED:
            return MODEL, len(margins)
        track, prospect = control.tracks[MODEL], control.prospect
        drafted = prospect.drafted(track, margins)
        track.promise(drafted.worth - prospect.price(len(margins)))
        if control.found.worth > drafted.worth:
            return LOOKUP, control.found.n
        return (MODEL, drafted.n) if drafted.n else (NOBODY, 0)

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
        n_drafted = next((len(guess[1]) for guess in guesses if guess[0] == MODEL), 0)
        prospect = control.prospect
        plain_s, pass_s = prospect.plain_s, prospect.pass_s(n_sent)
        draft_s = prospect.draft_s(n_drafted)
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
            if control.mode is SpeculationMode.AUTO:
                # A fixed length is a bench's; it must not teach those it is compared with.
                memory = self._memory.of(kind, control.band)
                memory.acceptance.observe(confidences, n_right, n_judged)

    def _look_s(self, kind: DrafterKind, n_missed: int) -> float:
        """Seconds that drafting for one probe takes; what lookup finds is free."""
        return self.costs.draft_s(PROBE_STEPS, n_missed) if kind is MODEL else 0.0


def _fixed(control: RequestControl, matches: Sequence[float]) -> tuple[str, int]:
    kind = next(iter(control.tracks))
    n = control.n_max if kind is MODEL else min(len(matches), control.n_max)
    return (kind, n) if n else (NOBODY, 0)
