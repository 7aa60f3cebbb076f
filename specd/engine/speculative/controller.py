"""How many tokens to draft, by whom, request by request and step by step, down to none.

Pure: every method is a function of what was observed before, no clock and no randomness, so a
recorded trace replays exactly (trace.py).  The rules are explained in docs/speculation.md.

The length is the k that maximises tokens(k) − λ·seconds(k), with λ the request's own tokens per
second: what counts is the ratio of sums (Dinkelbach), not the sum of ratios.  A draft model and
prompt lookup compete by that one figure, and the model drafts at all while its drafts are worth
more than they cost.  No draft is made or sent that could put an answer further behind plain
decoding than its budget allows (budget.py).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specd.core import DrafterKind, PairHistory, SpeculationMode, SpeculationState
from specd.engine.speculative.acceptance import TextAcceptance
from specd.engine.speculative.budget import BUDGET_SPENT, LossBudget, surprise
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.drafter import Places
from specd.engine.speculative.memory import BandMemory, Memory
from specd.engine.speculative.offer import Offer, drafting_shares, within_budgets
from specd.engine.speculative.prospect import Best, Prospect, chances
from specd.engine.speculative.siblings import SiblingChance, share_out
from specd.engine.speculative.track import LOW_ACCEPTANCE, Speed, Threshold, Track

#: Longest draft the controller asks for by itself.
MAX_DRAFT = 16
#: After so many steps with drafts one is plain, so that what drafting is compared with stays fresh.
_PLAIN_EVERY = 256
#: Share of a step that moves how many requests are taken to share a pass of the draft model.
_SHARING_SHARE = 1.0 / 16.0
#: Steps that the gain of earlier requests counts for in a new request's tokens per second.
_INHERITED_STEPS = 8
#: A row that is read again is priced as one of the next so many of a pass, on average.
_NEXT_ROWS = 8
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
    """What the controller knows of one request.  tracks: its drafters, in order of preference."""

    n_max: int
    mode: SpeculationMode
    band: int
    tracks: dict[DrafterKind, Track]
    prospect: Prospect
    budget: LossBudget = field(default_factory=LossBudget)
    speed: Speed = field(default_factory=Speed)
    matches: Sequence[float] = ()
    found: Best = field(default_factory=Best)
    #: Of this step: seconds of its pass and of drafting that the request answers for.
    pass_s: float = 0.0
    draft_s: float = 0.0
    is_probe: bool = False
    is_shut_out: bool = False
    n_missed: int = 0
    n_said: int = 0
    siblings: Sequence[int] = ()


def longest_draft(max_draft: int | None) -> int:
    """Return the longest draft that a pair limited to `max_draft` tokens may have."""
    return MAX_DRAFT if max_draft is None else max(0, min(max_draft, MAX_DRAFT))


def temperature_band(temperature: float) -> int:
    """Acceptance differs by temperature: 0, up to 0.5, up to 1, above."""
    return 0 if temperature <= 0 else 1 if temperature <= 0.5 else 2 if temperature <= 1 else 3


class Controller:
    """Decides for all requests of one engine; what it learned outlives them."""

    def __init__(
        self,
        costs: CostModel,
        threshold: float | None,
        history: PairHistory | None = None,
        max_draft: int | None = None,
    ) -> None:
        """threshold: accepted ÷ drafted below which a request stops drafting; None: no limit.

        history: what an earlier controller of the same pair had learned.
        max_draft: no draft is longer; None is MAX_DRAFT.
        """
        self.costs = costs
        self.longest = longest_draft(max_draft)
        self._threshold = threshold
        self._memory = Memory(history)
        self._requests: dict[int, RequestControl] = {}
        self._sibling_chances = defaultdict[int, SiblingChance](SiblingChance)
        self._n_sharing = 1.0
        self._n_since_plain = 0
        #: The requests of the last step and the width of its pass, 0 where nothing was drafted.
        self._drafting: Sequence[RequestControl] = ()
        self._drafted_width = 0
        #: Seconds that the draft model took in this step ÷ those that were expected.
        self._drafting_ratio = 1.0

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
        control = RequestControl(bound, mode, band, {}, Prospect(self.costs, 1.0 / plain_s))
        for kind in kinds:
            control.tracks[kind] = self._track(self._memory.of(kind, band))
        gain = max([1.0, *(self._memory.of(kind, band).gain or 1.0 for kind in kinds)])
        for _ in range(_INHERITED_STEPS):
            control.speed.add(1, plain_s / gain, plain_s)
        self._requests[request_id] = control

    def _track(self, memory: BandMemory) -> Track:
        threshold = Threshold(self._threshold) if self._threshold else None
        return Track(TextAcceptance(memory.acceptance), replace(memory.worth), threshold)

    def close(self, request_id: int) -> None:
        control = self._requests.pop(request_id)
        if control.mode is SpeculationMode.FIXED:
            return
        for kind, track in control.tracks.items():
            self._memory.of(kind, control.band).end_request(track, is_shut_out=control.is_shut_out)

    def state(self, request_id: int) -> tuple[SpeculationState, str]:
        """Return whether the request drafts, and why its first drafter does not ("" if it does).

        With a parked model, a request is active only once prompt lookup has sent a draft.
        """
        tracks = (control := self._requests[request_id]).tracks
        if not tracks:
            return SpeculationState.OFF, ""
        first = next(iter(tracks.values()))
        others = [t for t in tracks.values() if t is not first and not t.parked and t.n_drafted]
        is_spent = control.budget.lost_s > 0.0 and not control.prospect.n_affordable(1)
        reason = first.parked or (BUDGET_SPENT if is_spent else "")
        if reason and not others:
            return SpeculationState.PARKED, reason
        return SpeculationState.ACTIVE, reason

    # ------------------------------------------------------------------ decisions

    def plan(
        self,
        request_id: int,
        n_missed: int,
        n_slots: int,
        matches: Sequence[float] = (),
        n_left: int = NO_LIMIT,
    ) -> int:
        """Return the most tokens that the model may draft in this step; 0: it does not draft.

        n_missed: tokens the model has yet to read, beyond the one it always reads.
        n_slots: requests that decode in this step.  matches: confidences of what lookup has found.
        n_left: tokens that the answer may still have.
        """
        control = self._requests[request_id]
        control.matches, control.found = (), Best()
        if not control.tracks:
            return 0
        is_auto = control.mode is SpeculationMode.AUTO
        control.n_missed = n_missed
        control.prospect = Prospect(
            self.costs,
            control.speed.tokens / control.speed.seconds,
            n_missed,
            n_slots,
            self._n_sharing,
            control.budget if is_auto else None,
        )
        if not is_auto:
            control.matches = matches[: control.n_max] if LOOKUP in control.tracks else ()
            return control.n_max if MODEL in control.tracks else 0
        if self._n_since_plain >= _PLAIN_EVERY:
            return 0
        if LOOKUP in control.tracks:
            control.matches = matches[: control.n_max]
            control.found = control.prospect.best_of(control.tracks[LOOKUP], control.matches)
        if MODEL in control.tracks and self._asks_model(control, n_left):
            return control.prospect.n_affordable(control.n_max)
        return 0

    def _asks_model(self, control: RequestControl, n_left: int) -> bool:
        """Whether the model should draft in this step, or be probed where it does not pay."""
        track, prospect = control.tracks[MODEL], control.prospect
        control.is_probe = bool(track.parked) or not self._reading_pays(control, n_left)
        if not control.is_probe:
            return track.worth.mean >= control.found.worth
        probes = self._memory.of(MODEL, control.band).probes
        probes.earn()
        if track.parked == LOW_ACCEPTANCE and track.threshold and not track.threshold.may_probe():
            return False
        probe_s, plain_s = prospect.probe_s(), prospect.plain_s
        control.is_shut_out |= probes.is_out_of_reach(probe_s / plain_s, n_left)
        pays = control.budget.pays_probe(probe_s, plain_s)
        return not control.found.n and (pays or probes.affords(probe_s / plain_s, n_left))

    def _reading_pays(self, control: RequestControl, n_left: int) -> bool:
        """Whether the rest of the answer should pay for what the model has to read first."""
        n_to_come = min(n_left, max(control.n_said, _TO_COME))
        n_steps = n_to_come * control.speed.steps / control.speed.tokens
        return control.prospect.reading_price() <= control.tracks[MODEL].worth.mean * n_steps

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

    def choose(
        self, drafts: Sequence[tuple[int, Sequence[float]]], places: Sequence[Places] = ()
    ) -> list[tuple[str, int]]:
        """Return whose draft each request sends, and how many tokens; `siblings` says the rest.

        drafts: of every request that decodes in this step, the margins of what the model drafted
        for it, if anything.  places: for each, where siblings may be; empty: no siblings at all.
        """
        places = places or [Places()] * len(drafts)
        controls = [self._requests[request_id] for request_id, _ in drafts]
        self._share_drafting(controls, [len(margins) for _, margins in drafts])
        offers = [self._offer(c, margins) for c, (_, margins) in zip(controls, drafts, strict=True)]
        auto = [at for at, offer in enumerate(offers) if not offer.n]
        rates = [offers[at].rate for at in auto if offers[at].chances]
        rate, n_plain = statistics.fmean(rates) if rates else 0.0, len(drafts)
        n_plain += sum(place.n_owed for place in places)
        plain_s = self.costs.target_s(n_plain)
        next_s = (self.costs.target_s(1 + _NEXT_ROWS) - self.costs.target_s(1)) / _NEXT_ROWS
        candidates = [
            offers[at].candidates(
                places[at], self._sibling_chances[controls[at].band].mean, rate * max(next_s, 0.0)
            )
            for at in auto
        ]
        shares = share_out(
            candidates, lambda n: rate * max(self.costs.target_s(n_plain + n) - plain_s, 0.0)
        )
        for at, share in zip(auto, shares, strict=True):
            offers[at] = offers[at].take(share)
        spare_s = [control.prospect.spare_s - control.draft_s for control in controls]
        n_owed = [place.n_owed for place in places]
        offers, pass_s = within_budgets(self.costs, offers, spare_s, n_owed)
        for control, offer, seconds in zip(controls, offers, pass_s, strict=True):
            control.siblings, control.pass_s = offer.siblings, seconds
        n_rows = n_plain + sum(offer.n_rows for offer in offers)
        self._drafting, self._drafted_width = controls, n_rows if n_rows > n_plain else 0
        is_plain = n_rows == n_plain and not any(m for _, m in drafts)
        self._n_since_plain = 0 if is_plain else self._n_since_plain + 1
        return [(offer.drafter, offer.n) if offer.n_rows else (NOBODY, 0) for offer in offers]

    def siblings(self, request_id: int) -> Sequence[int]:
        """Return the indices of the drafted tokens whose siblings are sent too, in order."""
        return self._requests[request_id].siblings

    def _share_drafting(self, controls: Sequence[RequestControl], lengths: Sequence[int]) -> None:
        """Charge each request its part of each draft pass that it shared, and its reading."""
        shares = drafting_shares(self.costs.draft_s(1), lengths)
        for control, n, seconds in zip(controls, lengths, shares, strict=True):
            reading_s = self.costs.reading_s(control.n_missed) if n else 0.0
            control.draft_s = (seconds + reading_s) * self._drafting_ratio
        self._drafting_ratio = 1.0
        if longest := max(lengths):
            self._n_sharing += (sum(lengths) / longest - self._n_sharing) * _SHARING_SHARE

    def _offer(self, control: RequestControl, margins: Sequence[float]) -> Offer:
        if control.mode is SpeculationMode.FIXED:
            sent_by, n = (MODEL, len(margins)) if margins else (LOOKUP, len(control.matches))
            return Offer(sent_by, 0.0, [], None, n)
        prospect = control.prospect
        if margins:
            track = control.tracks[MODEL]
            drafted = prospect.drafted(track, margins)
            worth = drafted.worth - prospect.price(len(margins))
            track.promise(worth)
            self._memory.of(MODEL, control.band).promise(worth)
            if drafted.worth >= control.found.worth:
                return Offer(MODEL, prospect.rate, [*chances(track.acceptance, margins)], track)
        if control.matches:
            track = control.tracks[LOOKUP]
            odds = [*chances(track.acceptance, control.matches)]
            return Offer(LOOKUP, prospect.rate, odds, track)
        return Offer(NOBODY, prospect.rate, [], None)

    # ------------------------------------------------------------------ observations

    def observe_prompt(self, request_id: int, seconds: float) -> None:
        """The target took so long to read the request's prompt."""
        # The pass that gives the first token is no part of what is compared with drafting.
        beyond_s = max(seconds - self.costs.target_s(1), 0.0)
        self._requests[request_id].budget.add_prompt(beyond_s)

    def observe_target(self, width: int, seconds: float) -> None:
        """A pass of that width took so long, drawing its tokens included."""
        self._correct(width, seconds)
        self.costs.observe_target(width, seconds)

    def _correct(self, width: int, seconds: float) -> None:
        """Charge what drafts added by the clock, where the costs expected something else."""
        if width != self._drafted_width:
            return
        expected_s = sum(control.pass_s for control in self._drafting)
        ratio = surprise(seconds, expected_s)
        for control in self._drafting:
            control.budget.lost_s += control.pass_s * (ratio - 1.0)

    def observe_draft(self, n_steps: int, n_missed: int, seconds: float) -> None:
        self._drafting_ratio = surprise(seconds, self.costs.draft_s(n_steps, n_missed))
        self.costs.observe_draft(n_steps, n_missed, seconds)

    def observe_step(
        self, request_id: int, sent_by: str, n_sent: int, n_accepted: int, guesses: Sequence[Guess]
    ) -> None:
        """One step of a request: n_sent places of sent_by were verified, n_accepted kept.

        A place is kept by its token or by its sibling.

        guesses: all that was guessed for it, sent or not; the text judges unsent ones for free.
        """
        control = self._requests[request_id]
        self._learn(control, guesses)
        control.n_said += n_accepted + 1
        n_drafted = next((len(guess[1]) for guess in guesses if guess[0] == MODEL), 0)
        plain_s, step_s = control.prospect.plain_s, control.pass_s + control.draft_s
        control.speed.add(n_accepted + 1, step_s, plain_s)
        control.budget.add_step(n_accepted + 1, step_s, plain_s)
        if n_drafted:
            control.budget.n_idle = 0
        if control.is_probe and n_drafted:
            lost_s = step_s - (n_accepted + 1) * plain_s
            self._memory.of(MODEL, control.band).probes.spend(lost_s / plain_s)
        if n_drafted and sent_by != MODEL:
            # Its draft was made and not sent: that was its price, and brought nothing.
            control.tracks[MODEL].observe(0, 0, plain_s + control.draft_s, plain_s)
        elif n_drafted:
            control.tracks[MODEL].observe(n_sent, n_accepted, step_s, plain_s)
        if sent_by == LOOKUP:
            control.tracks[LOOKUP].observe(n_sent, n_accepted, control.pass_s, plain_s)

    def observe_sibling(self, request_id: int, is_right: bool) -> None:
        """Note whether the sibling of the model's first wrong token was right."""
        control = self._requests[request_id]
        if control.mode is SpeculationMode.AUTO:
            self._sibling_chances[control.band].observe(is_right=is_right)

    def measure(
        self, request_id: int, kind: DrafterKind, tokens: int, seconds: float, plain_s: float
    ) -> None:
        """A step that the drafter drafted for, by the clock.  Nothing is decided by it now.

        plain_s: seconds that a plain pass would have taken.  A request that has ended is ignored.
        """
        control = self._requests.get(request_id)
        if control is not None and kind in control.tracks:
            control.tracks[kind].measured.add(tokens, seconds, plain_s)

    def _learn(self, control: RequestControl, guesses: Sequence[Guess]) -> None:
        for drafter, confidences, n_right, n_judged in guesses:
            kind = DrafterKind(drafter)
            if kind not in control.tracks:
                continue
            # A fixed length is a bench's; it must not teach those it is compared with.
            teaches = control.mode is SpeculationMode.AUTO
            control.tracks[kind].learn(confidences, n_right, n_judged, teaches=teaches)
