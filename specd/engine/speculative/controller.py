"""The choice of drafter and draft length, for each request in each step.

The controller has no clock and no randomness, so a recorded trace replays exactly (trace.py).
docs/speculation.md explains the rules.

The chosen length k maximises tokens(k) − λ·seconds(k).  λ is the request's own tokens per second:
the controller maximises total tokens ÷ total seconds (Dinkelbach).  The draft model and prompt
lookup compete by that one figure.  The draft model is parked while its drafts cost more than they
gain.  No draft may put an answer further behind plain decoding than its budget allows (budget.py).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from specd.core import DrafterKind, PairHistory, SpeculationMode, SpeculationState
from specd.engine.speculative.acceptance import TextAcceptance
from specd.engine.speculative.budget import BUDGET_SPENT, overrun_ratio
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_proposal import (
    DraftProposal,
    SiblingChance,
    SiblingLimits,
    allocate_rows,
    cut_to_budgets,
    split_drafting_time,
)
from specd.engine.speculative.drafter_stats import LOW_ACCEPTANCE, DrafterStats, Threshold
from specd.engine.speculative.expected_gain import BestLength, ExpectedGain, chances
from specd.engine.speculative.pair_stats import BandStats, PairStats
from specd.engine.speculative.request_control import RequestControl

#: Longest draft the controller asks for by itself.
MAX_DRAFT = 16
#: One step in this many is plain, so that the cost of a plain pass stays up to date.
_PLAIN_EVERY = 256
#: Weight of one step in the running mean of the number of requests that share a draft pass.
_SHARING_SHARE = 1.0 / 16.0
#: Weight of the gain of earlier requests in a new request's tokens per second, in steps.
_INHERITED_STEPS = 8
#: The price of evaluating a row again is the mean price of this many further rows in a pass.
_NEXT_ROWS = 8
#: Expected length of an answer that has just begun, in tokens.
_EXPECTED_TOKENS = 128
#: Token limit of an answer for which the request sets none.
NO_LIMIT = 1 << 31

MODEL, LOOKUP = DrafterKind.MODEL, DrafterKind.LOOKUP
#: The drafter of a plain step.
NO_DRAFTER = ""

#: (drafter, confidences, number of correct tokens, number of tokens that the target judged).
Guess = tuple[str, Sequence[float], int, int]


def longest_draft(max_draft: int | None) -> int:
    """Return the longest draft that a pair limited to `max_draft` tokens may have."""
    return MAX_DRAFT if max_draft is None else max(0, min(max_draft, MAX_DRAFT))


def temperature_band(temperature: float) -> int:
    """Return the band's index: 0 for temperature 0, 1 up to 0.5, 2 up to 1, 3 above."""
    return 0 if temperature <= 0 else 1 if temperature <= 0.5 else 2 if temperature <= 1 else 3


class Controller:
    """The speculation policy of one engine: decides for all requests and learns from each."""

    def __init__(
        self,
        costs: CostModel,
        threshold: float | None,
        history: PairHistory | None = None,
        max_draft: int | None = None,
    ) -> None:
        """Start from measured costs and, where there is one, the history of the pair.

        threshold: accepted ÷ drafted below which a request stops drafting; None: no limit.
        history: statistics that an earlier controller of the same pair saved.
        max_draft: longest draft in tokens; None is MAX_DRAFT.
        """
        self.costs = costs
        self.longest = longest_draft(max_draft)
        self._threshold = threshold
        self._pair_stats = PairStats(history)
        self._requests: dict[int, RequestControl] = {}
        self._sibling_chances = defaultdict[int, SiblingChance](SiblingChance)
        self._n_sharing = 1.0
        self._n_since_plain = 0
        #: The requests of the last step and the width of its pass, 0 where nothing was drafted.
        self._drafting: Sequence[RequestControl] = ()
        self._drafted_width = 0
        #: Measured ÷ expected seconds of the draft model in this step.
        self._drafting_ratio = 1.0

    def history(self) -> PairHistory:
        """Return the statistics with which the next controller of this pair starts."""
        return self._pair_stats.history(self.costs)

    # ------------------------------------------------------------------ life of a request

    def open(
        self,
        request_id: int,
        n_max: int | None,
        mode: SpeculationMode,
        temperature: float,
        drafters: Sequence[str],
    ) -> None:
        """Add a request.  n_max: its longest draft.  drafters: best first; none: plain decoding."""
        bound = self.longest if n_max is None else max(0, min(n_max, self.longest))
        band = temperature_band(temperature)
        kinds = [DrafterKind(kind) for kind in drafters] if bound else []
        if mode is SpeculationMode.FIXED:
            kinds = kinds[:1]
        plain_s = self.costs.target_s(1)
        control = RequestControl(bound, mode, band, {}, ExpectedGain(self.costs, 1.0 / plain_s))
        for kind in kinds:
            control.drafter_stats[kind] = self._make_drafter_stats(self._pair_stats.of(kind, band))
        gain = max([1.0, *(self._pair_stats.of(kind, band).gain or 1.0 for kind in kinds)])
        for _ in range(_INHERITED_STEPS):
            control.speed.add(1, plain_s / gain, plain_s)
        self._requests[request_id] = control

    def _make_drafter_stats(self, memory: BandStats) -> DrafterStats:
        threshold = Threshold(self._threshold) if self._threshold else None
        return DrafterStats(TextAcceptance(memory.acceptance), replace(memory.worth), threshold)

    def close(self, request_id: int) -> None:
        """Remove a request and add its statistics to those of the pair."""
        control = self._requests.pop(request_id)
        if control.mode is SpeculationMode.FIXED:
            return
        for kind, stats in control.drafter_stats.items():
            self._pair_stats.of(kind, control.band).end_request(
                stats, is_probe_unaffordable=control.is_probe_unaffordable
            )

    def state(self, request_id: int) -> tuple[SpeculationState, str]:
        """Return whether the request drafts, and why its first drafter does not ("" if it does).

        While the draft model is parked, a request is active only after prompt lookup sent a draft.
        """
        drafter_stats = (control := self._requests[request_id]).drafter_stats
        if not drafter_stats:
            return SpeculationState.OFF, ""
        first = next(iter(drafter_stats.values()))
        others = [
            t for t in drafter_stats.values() if t is not first and not t.parked and t.n_drafted
        ]
        is_spent = control.budget.lost_s > 0.0 and not control.expected_gain.n_affordable(1)
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
        n_slots: requests that decode in this step.  matches: confidences of the lookup draft.
        n_left: tokens that the answer may still have.
        """
        control = self._requests[request_id]
        control.matches, control.found = (), BestLength()
        if not control.drafter_stats:
            return 0
        is_auto = control.mode is SpeculationMode.AUTO
        control.n_missed = n_missed
        control.expected_gain = ExpectedGain(
            self.costs,
            control.speed.tokens / control.speed.seconds,
            n_missed,
            n_slots,
            self._n_sharing,
            control.budget if is_auto else None,
        )
        if not is_auto:
            control.matches = matches[: control.n_max] if LOOKUP in control.drafter_stats else ()
            return control.n_max if MODEL in control.drafter_stats else 0
        if self._n_since_plain >= _PLAIN_EVERY:
            return 0
        if LOOKUP in control.drafter_stats:
            control.matches = matches[: control.n_max]
            control.found = control.expected_gain.best_length_of(
                control.drafter_stats[LOOKUP], control.matches
            )
        if MODEL in control.drafter_stats and self._should_run_model(control, n_left):
            return control.expected_gain.n_affordable(control.n_max)
        return 0

    def _should_run_model(self, control: RequestControl, n_left: int) -> bool:
        """Return whether the model should draft: because drafting pays, or as a probe."""
        stats, expected_gain = control.drafter_stats[MODEL], control.expected_gain
        control.is_probe = bool(stats.parked) or not self._is_catch_up_worth_it(control, n_left)
        if not control.is_probe:
            return stats.worth.mean >= control.found.worth
        probes = self._pair_stats.of(MODEL, control.band).probes
        probes.earn()
        if stats.parked == LOW_ACCEPTANCE and stats.threshold and not stats.threshold.may_probe():
            return False
        probe_s, plain_s = expected_gain.probe_s(), expected_gain.plain_s
        control.is_probe_unaffordable |= probes.is_unaffordable(probe_s / plain_s, n_left)
        pays = control.budget.can_pay_probe(probe_s, plain_s)
        return not control.found.n and (pays or probes.can_afford(probe_s / plain_s, n_left))

    def _is_catch_up_worth_it(self, control: RequestControl, n_left: int) -> bool:
        """Return whether the expected gain in the rest of the answer covers the reading first."""
        n_expected = min(n_left, max(control.n_emitted, _EXPECTED_TOKENS))
        n_steps = n_expected * control.speed.steps / control.speed.tokens
        return (
            control.expected_gain.reading_price()
            <= control.drafter_stats[MODEL].worth.mean * n_steps
        )

    def extend(self, request_id: int, margins: Sequence[float]) -> bool:
        """Return whether to draft one more token, given the margins of those drafted so far."""
        control = self._requests[request_id]
        if len(margins) >= control.n_max:
            return False
        if control.mode is SpeculationMode.FIXED:
            return True
        return control.expected_gain.should_extend(
            control.drafter_stats[MODEL], margins, control.n_max, control.found.worth
        )

    def choose(
        self, drafts: Sequence[tuple[int, Sequence[float]]], places: Sequence[SiblingLimits] = ()
    ) -> list[tuple[str, int]]:
        """Return (drafter, number of tokens to send) for each request; see also `siblings`.

        drafts: (request id, margins of the model's draft, which may be empty) for every request
        that decodes in this step.  places: sibling limits for each; empty: no siblings at all.
        """
        places = places or [SiblingLimits()] * len(drafts)
        controls = [self._requests[request_id] for request_id, _ in drafts]
        self._share_drafting(controls, [len(margins) for _, margins in drafts])
        proposals = [
            self._propose(c, margins) for c, (_, margins) in zip(controls, drafts, strict=True)
        ]
        auto = [at for at, proposal in enumerate(proposals) if not proposal.n]
        rates = [proposals[at].rate for at in auto if proposals[at].chances]
        rate, n_plain = statistics.fmean(rates) if rates else 0.0, len(drafts)
        n_plain += sum(place.n_reevaluated for place in places)
        plain_s = self.costs.target_s(n_plain)
        next_s = (self.costs.target_s(1 + _NEXT_ROWS) - self.costs.target_s(1)) / _NEXT_ROWS
        candidates = [
            proposals[at].candidates(
                places[at], self._sibling_chances[controls[at].band].mean, rate * max(next_s, 0.0)
            )
            for at in auto
        ]
        shares = allocate_rows(
            candidates, lambda n: rate * max(self.costs.target_s(n_plain + n) - plain_s, 0.0)
        )
        for at, share in zip(auto, shares, strict=True):
            proposals[at] = proposals[at].take(share)
        spare_s = [control.expected_gain.spare_s - control.draft_s for control in controls]
        n_reevaluated = [place.n_reevaluated for place in places]
        proposals, pass_s = cut_to_budgets(self.costs, proposals, spare_s, n_reevaluated)
        for control, proposal, seconds in zip(controls, proposals, pass_s, strict=True):
            control.siblings, control.pass_s = proposal.siblings, seconds
        n_rows = n_plain + sum(proposal.n_rows for proposal in proposals)
        self._drafting, self._drafted_width = controls, n_rows if n_rows > n_plain else 0
        is_plain = n_rows == n_plain and not any(m for _, m in drafts)
        self._n_since_plain = 0 if is_plain else self._n_since_plain + 1
        return [
            (proposal.drafter, proposal.n) if proposal.n_rows else (NO_DRAFTER, 0)
            for proposal in proposals
        ]

    def siblings(self, request_id: int) -> Sequence[int]:
        """Return the indices of the drafted tokens whose siblings are sent too, in order."""
        return self._requests[request_id].siblings

    def _share_drafting(self, controls: Sequence[RequestControl], lengths: Sequence[int]) -> None:
        """Charge each request its share of the draft passes, and the reading done for it."""
        shares = split_drafting_time(self.costs.draft_s(1), lengths)
        for control, n, seconds in zip(controls, lengths, shares, strict=True):
            reading_s = self.costs.reading_s(control.n_missed) if n else 0.0
            control.draft_s = (seconds + reading_s) * self._drafting_ratio
        self._drafting_ratio = 1.0
        if longest := max(lengths):
            self._n_sharing += (sum(lengths) / longest - self._n_sharing) * _SHARING_SHARE

    def _propose(self, control: RequestControl, margins: Sequence[float]) -> DraftProposal:
        if control.mode is SpeculationMode.FIXED:
            sent_by, n = (MODEL, len(margins)) if margins else (LOOKUP, len(control.matches))
            return DraftProposal(sent_by, 0.0, [], None, n)
        expected_gain = control.expected_gain
        if margins:
            stats = control.drafter_stats[MODEL]
            best_drafted = expected_gain.best_drafted(stats, margins)
            worth = best_drafted.worth - expected_gain.price(len(margins))
            stats.observe_worth(worth)
            self._pair_stats.of(MODEL, control.band).observe_worth(worth)
            if best_drafted.worth >= control.found.worth:
                return DraftProposal(
                    MODEL, expected_gain.rate, [*chances(stats.acceptance, margins)], stats
                )
        if control.matches:
            stats = control.drafter_stats[LOOKUP]
            odds = [*chances(stats.acceptance, control.matches)]
            return DraftProposal(LOOKUP, expected_gain.rate, odds, stats)
        return DraftProposal(NO_DRAFTER, expected_gain.rate, [], None)

    # ------------------------------------------------------------------ observations

    def observe_prompt(self, request_id: int, seconds: float) -> None:
        """Note the seconds in which the target read the request's prompt."""
        # Plain decoding needs the pass of the first token as well, so it does not count here.
        beyond_s = max(seconds - self.costs.target_s(1), 0.0)
        self._requests[request_id].budget.add_prompt(beyond_s)

    def observe_target(self, width: int, seconds: float) -> None:
        """Note the seconds of a target pass of `width` rows, sampling included."""
        self._charge_overrun(width, seconds)
        self.costs.observe_target(width, seconds)

    def _charge_overrun(self, width: int, seconds: float) -> None:
        """Charge the difference between measured and expected time to the requests that drafted."""
        if width != self._drafted_width:
            return
        expected_s = sum(control.pass_s for control in self._drafting)
        ratio = overrun_ratio(seconds, expected_s)
        for control in self._drafting:
            control.budget.lost_s += control.pass_s * (ratio - 1.0)

    def observe_draft(self, n_steps: int, n_missed: int, seconds: float) -> None:
        """Note the seconds of n_steps draft passes, the first with n_missed further tokens."""
        self._drafting_ratio = overrun_ratio(seconds, self.costs.draft_s(n_steps, n_missed))
        self.costs.observe_draft(n_steps, n_missed, seconds)

    def observe_step(
        self, request_id: int, sent_by: str, n_sent: int, n_accepted: int, guesses: Sequence[Guess]
    ) -> None:
        """Note one step of a request: n_sent positions were verified, n_accepted of them accepted.

        A position is accepted if its drafted token or that token's sibling is right.
        guesses: all drafts made for the step; those not sent are compared with the text as well.
        """
        control = self._requests[request_id]
        self._learn_from_guesses(control, guesses)
        control.n_emitted += n_accepted + 1
        n_drafted = next((len(guess[1]) for guess in guesses if guess[0] == MODEL), 0)
        plain_s, step_s = control.expected_gain.plain_s, control.pass_s + control.draft_s
        control.speed.add(n_accepted + 1, step_s, plain_s)
        control.budget.add_step(n_accepted + 1, step_s, plain_s)
        if n_drafted:
            control.budget.n_idle = 0
        if control.is_probe and n_drafted:
            lost_s = step_s - (n_accepted + 1) * plain_s
            self._pair_stats.of(MODEL, control.band).probes.spend(lost_s / plain_s)
        if n_drafted and sent_by != MODEL:
            # The draft was made and not sent: it cost its drafting time and gained nothing.
            control.drafter_stats[MODEL].observe(0, 0, plain_s + control.draft_s, plain_s)
        elif n_drafted:
            control.drafter_stats[MODEL].observe(n_sent, n_accepted, step_s, plain_s)
        if sent_by == LOOKUP:
            control.drafter_stats[LOOKUP].observe(n_sent, n_accepted, control.pass_s, plain_s)

    def observe_sibling(self, request_id: int, is_right: bool) -> None:
        """Note whether the sibling of the model's first wrong token was right."""
        control = self._requests[request_id]
        if control.mode is SpeculationMode.AUTO:
            self._sibling_chances[control.band].observe(is_right=is_right)

    def measure(
        self, request_id: int, kind: DrafterKind, tokens: int, seconds: float, plain_s: float
    ) -> None:
        """Note the measured seconds of a step with a draft; they only count for the pair's gain.

        plain_s: seconds that a plain pass would have taken.  A request that has ended is ignored.
        """
        control = self._requests.get(request_id)
        if control is not None and kind in control.drafter_stats:
            control.drafter_stats[kind].measured.add(tokens, seconds, plain_s)

    def _learn_from_guesses(self, control: RequestControl, guesses: Sequence[Guess]) -> None:
        for drafter, confidences, n_right, n_judged in guesses:
            kind = DrafterKind(drafter)
            if kind not in control.drafter_stats:
                continue
            # `specd bench` sets fixed lengths; they must not influence the automatic ones.
            teaches = control.mode is SpeculationMode.AUTO
            control.drafter_stats[kind].learn(confidences, n_right, n_judged, teaches=teaches)
