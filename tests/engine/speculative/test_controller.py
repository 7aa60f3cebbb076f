"""The controller's decisions, driven by simulated texts: no model, no clock."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import BandHistory, DrafterKind, PairHistory, SpeculationMode, SpeculationState
from specd.engine.speculative.controller import (
    LOOKUP,
    MAX_DRAFT,
    MODEL,
    NO_DRAFTER,
    Controller,
    Guess,
    temperature_band,
)
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_proposal import RowCandidates, allocate_rows
from specd.engine.speculative.drafter_stats import DOES_NOT_PAY, LOW_ACCEPTANCE
from tests.engine.speculative.simulated_text import CPU, GPU, Text, make, run


@pytest.mark.parametrize("mode", SpeculationMode)
@pytest.mark.parametrize(
    "max_draft, n_max, longest",
    [
        (None, None, 16),
        (5, None, 5),
        (5, 3, 3),
        (5, 9, 5),
        (99, None, 16),
        (0, None, 0),
        (-1, 4, 0),
    ],
)
def test_the_pairs_longest_draft_limits_every_request(
    mode: SpeculationMode, max_draft: int | None, n_max: int | None, longest: int
) -> None:
    controller = Controller(CostModel(GPU, 0.001), 0.0, max_draft=max_draft)
    controller.open(1, n_max, mode, 0.8, [MODEL])
    assert controller.plan(1, 0, 1) == longest
    margins = [9.0] * longest
    assert not controller.extend(1, margins)
    assert controller.extend(1, margins[1:]) or not longest


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.1))
def test_a_useless_drafter_costs_little(seed: int, rate: float) -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    total = run(controller, CostModel(CPU, 0.05), Text(rate, random.Random(seed)), 1000)
    assert total.speed >= 0.97


def test_a_drafter_that_is_never_right_is_parked_in_its_first_answer() -> None:
    steep = {1: 1.0, 2: 2.4, 3: 3.3, 9: 4.5, 17: 7.0}
    for seed in range(20):
        controller = make(steep, 0.02)
        controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
        total = run(controller, CostModel(steep, 0.02), Text(0.0, random.Random(seed)), 48)
        # One draft may be sent before it is known; after that, drafts are made and not sent.
        assert total.seconds - total.tokens <= 2.0 + 0.05 * 48
        assert total.drafting_steps <= 32


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3])
def test_the_threshold_parks_a_request_at_any_cost(rate: float) -> None:
    """Passes and drafts are free here: only the user's guard rail is left."""
    free = {1: 1.0, 17: 1.0}
    controller = make(free, draft_step_s=1e-6, threshold=0.6)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    text, states, n_drafting = Text(rate, random.Random(1)), [], 0
    for _ in range(40):
        n_drafting += run(controller, CostModel(free, 1e-6), text, 25).drafting_steps
        states.append(controller.state(1))
    assert (SpeculationState.PARKED, LOW_ACCEPTANCE) in states
    assert n_drafting < 500, "most of the time it is off"


def test_probes_of_a_parked_request_get_rarer() -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    truth, text = CostModel(CPU, 0.05), Text(0.0, random.Random(1))
    early = run(controller, truth, text, 400).drafting_steps
    late = run(controller, truth, text, 400).drafting_steps
    assert 0 < late < early
    assert controller.state(1)[1] in {DOES_NOT_PAY, LOW_ACCEPTANCE}


def test_drafting_resumes_when_the_text_becomes_easy() -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    truth = CostModel(CPU, 0.05)
    run(controller, truth, Text(0.0, random.Random(1)), 200)
    assert controller.state(1)[0] is SpeculationState.PARKED
    run(controller, truth, Text(0.95, random.Random(2)), 800)
    assert controller.state(1) == (SpeculationState.ACTIVE, "")


def test_probing_costs_about_a_hundredth() -> None:
    """A drafter as dear as three passes: each probe loses much, so probes must be far apart."""
    controller = make(CPU, draft_step_s=3.0)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    truth = CostModel(CPU, 3.0)
    run(controller, truth, Text(0.0, random.Random(1)), 200)
    assert run(controller, truth, Text(0.0, random.Random(1)), 3000).speed >= 0.97


def test_a_request_that_gains_unparks_the_next_ones() -> None:
    controller = make(CPU)
    truth = CostModel(CPU, 0.05)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    run(controller, truth, Text(0.0, random.Random(1)), 100)
    controller.close(1)
    controller.open(2, None, SpeculationMode.AUTO, 0.8, [MODEL])
    run(controller, truth, Text(0.97, random.Random(2)), 800, request_id=2)
    controller.close(2)
    controller.open(3, None, SpeculationMode.AUTO, 0.8, [MODEL])
    assert controller.state(3)[0] is SpeculationState.ACTIVE


def test_plain_steps_are_measured_from_time_to_time() -> None:
    controller = make(GPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    total = run(controller, CostModel(GPU, 0.05), Text(1.0, random.Random(1)), 650)
    assert 650 - total.drafting_steps == 2


def test_the_next_request_starts_from_the_pairs_statistics() -> None:
    controller = make(CPU)
    truth = CostModel(CPU, 0.05)
    for request_id in range(1, 7):
        controller.open(request_id, None, SpeculationMode.AUTO, 0.8, [MODEL])
        # A single bad answer is no verdict.
        assert controller.state(request_id)[0] is SpeculationState.ACTIVE or request_id > 2
        run(controller, truth, Text(0.0, random.Random(1)), 60, request_id=request_id)
        controller.close(request_id)
    controller.open(7, None, SpeculationMode.AUTO, 0.8, [MODEL])
    assert controller.state(7)[0] is SpeculationState.PARKED
    controller.open(8, None, SpeculationMode.AUTO, 0.0, [MODEL])
    assert controller.state(8)[0] is SpeculationState.ACTIVE


def test_zero_disables_drafting_and_the_users_limit_applies() -> None:
    controller = make(GPU)
    controller.open(1, 0, SpeculationMode.AUTO, 0.8, [MODEL])
    assert controller.plan(1, 0, 1) == 0
    assert controller.state(1)[0] is SpeculationState.OFF
    controller.open(2, 3, SpeculationMode.AUTO, 0.8, [MODEL])
    total = run(controller, CostModel(GPU, 0.05), Text(1.0, random.Random(1)), 50, request_id=2)
    assert total.drafted <= 3 * 50
    controller.open(3, 1000, SpeculationMode.AUTO, 0.8, [MODEL])
    assert controller.plan(3, 0, 1) == MAX_DRAFT


def test_a_fixed_length_is_always_drafted() -> None:
    controller = make(CPU)
    controller.open(1, 5, SpeculationMode.FIXED, 0.8, [MODEL])
    total = run(controller, CostModel(CPU, 0.05), Text(0.0, random.Random(1)), 100)
    assert total.drafted == 500


def test_a_busy_engine_drafts_less() -> None:
    """Many other rows in the pass put each further row on the steep part of the cost curve."""
    steep = {1: 1.0, 8: 1.1, 16: 4.0, 40: 16.0}
    controller = make(steep, draft_step_s=0.01)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    margins = [6.0] * 6
    controller.plan(1, 0, 1)
    ((_, alone),) = controller.choose([(1, margins)])
    for request_id in range(2, 9):
        controller.open(request_id, None, SpeculationMode.AUTO, 0.8, [MODEL])
    for request_id in range(1, 9):
        controller.plan(request_id, 0, 8)
    crowded = controller.choose([(request_id, margins) for request_id in range(1, 9)])
    assert max(n for _, n in crowded) < alone


def test_rows_go_to_the_likeliest_drafts() -> None:
    controller = make(CPU)
    for request_id in (1, 2, 3, 4):
        controller.open(request_id, None, SpeculationMode.AUTO, 0.8, [MODEL])
    for _ in range(300):
        for request_id in (1, 2, 3, 4):
            controller.plan(request_id, 0, 4)
        controller.choose([(request_id, []) for request_id in (1, 2, 3, 4)])
        controller.observe_step(1, NO_DRAFTER, 0, 0, [(MODEL, [0.05], 0, 1)])
        for request_id in (2, 4):
            controller.observe_step(request_id, NO_DRAFTER, 0, 0, [(MODEL, [9.0], 1, 1)])
    for request_id in (1, 2, 3, 4):
        controller.plan(request_id, 0, 4)
    chosen = controller.choose([(1, [0.05]), (2, [9.0] * 4), (3, [0.05]), (4, [9.0] * 4)])
    assert [n for _, n in chosen] == [0, 2, 0, 2], "eight rows cost no more than five"


costs_at = st.lists(st.floats(0.01, 3.0), min_size=40, max_size=40).map(
    lambda steps: {i + 1: sum(steps[: i + 1]) for i in range(40)}
)
falling = st.lists(st.floats(0.0, 1.0), max_size=4).map(
    lambda factors: [math.prod(factors[: i + 1]) for i in range(len(factors))]
)


@given(costs_at, st.floats(0.01, 5.0), st.lists(falling, min_size=1, max_size=3))
def test_chosen_lengths_are_worth_most(
    costs: dict[int, float], rate: float, drafts: list[list[float]]
) -> None:
    model, n_slots = CostModel(costs), len(drafts)

    def worth(lengths: Iterable[int]) -> float:
        lengths = tuple(lengths)
        tokens = sum(sum(draft[:n]) for draft, n in zip(drafts, lengths, strict=True))
        added = model.target_s(n_slots + sum(lengths)) - model.target_s(n_slots)
        return tokens - rate * added

    best = max(map(worth, itertools.product(*(range(len(draft) + 1) for draft in drafts))))
    plain_s = model.target_s(n_slots)
    shares = allocate_rows(
        [RowCandidates(draft) for draft in drafts],
        lambda n: rate * max(model.target_s(n_slots + n) - plain_s, 0.0),
    )
    assert worth(share.n for share in shares) == pytest.approx(best)


@pytest.mark.parametrize(
    "temperature, band", [(0.0, 0), (0.3, 1), (0.5, 1), (0.8, 2), (1.0, 2), (1.5, 3)]
)
def test_temperature_bands(temperature: float, band: int) -> None:
    assert temperature_band(temperature) == band


def matches(n: int, first: float = 20.0) -> list[float]:
    return [first + i for i in range(n)]


def look_up(controller: Controller, right: bool, n_steps: int) -> list[tuple[str, int]]:
    """Run steps of request 1 in which lookup finds 16 tokens, all right or all wrong."""
    plans = []
    for _ in range(n_steps):
        controller.plan(1, 0, 1, matches(16))
        ((drafter, n),) = controller.choose([(1, [])])
        n_accepted = n if right else 0
        n_judged = n_accepted + 1 if n < 16 else n_accepted
        guess: Guess = (LOOKUP, matches(16), min(n_accepted + right, 16), max(n_judged, 1))
        controller.observe_step(1, drafter, n, n_accepted, [guess])
        plans.append((drafter, n))
    return plans


def test_a_long_match_is_sent_without_the_model() -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL, LOOKUP])
    assert look_up(controller, True, 40)[-1][0] == LOOKUP
    assert controller.plan(1, 0, 1) == MAX_DRAFT


def test_misleading_matches_are_no_longer_sent() -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [LOOKUP])
    plans = look_up(controller, False, 40)
    assert plans[0][0] == LOOKUP
    assert plans[-1] == (NO_DRAFTER, 0)


def test_unsent_matches_are_judged() -> None:
    """Unsent matches also update acceptance, so that sending can become worthwhile."""
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [LOOKUP])
    look_up(controller, False, 40)
    for _ in range(60):
        controller.plan(1, 0, 1, matches(16)[:1])
        controller.choose([(1, [])])
        controller.observe_step(1, NO_DRAFTER, 0, 0, [(LOOKUP, matches(16)[:1], 1, 1)])
    assert controller.state(1)[0] in {SpeculationState.ACTIVE, SpeculationState.PARKED}
    controller.close(1)
    by_bin = next(b for b in controller.history().bands if b.drafter == LOOKUP).by_confidence
    assert by_bin[6][0] > 0.5


def test_the_better_of_two_drafts_is_sent() -> None:
    controller = make(CPU, draft_step_s=0.001)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL, LOOKUP])
    # A short match is worth little: the model is asked, and its draft weighed against the match.
    assert controller.plan(1, 0, 1, [3.0, 4.0, 5.0]) > 3
    assert controller.choose([(1, [6.0, 6.0, 6.0])])[0][0] == MODEL
    for _ in range(60):
        controller.plan(1, 0, 1, matches(3))
        guesses: list[Guess] = [(MODEL, [0.05], 0, 1), (LOOKUP, matches(3), 3, 3)]
        controller.choose([(1, [0.05])])
        controller.observe_step(1, LOOKUP, 3, 3, guesses)
    controller.plan(1, 0, 1, matches(3))
    assert controller.choose([(1, [0.05])]) == [(LOOKUP, 3)]


def test_a_fixed_lookup_sends_its_whole_match() -> None:
    controller = make(CPU)
    controller.open(1, 4, SpeculationMode.FIXED, 0.8, [LOOKUP])
    for found, sent in (
        (matches(9), (LOOKUP, 4)),
        (matches(2), (LOOKUP, 2)),
        ([], (NO_DRAFTER, 0)),
    ):
        assert controller.plan(1, 0, 1, found) == 0
        assert controller.choose([(1, [])]) == [sent]


def test_the_next_engine_starts_from_the_history() -> None:
    first = make(CPU)
    first.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    run(first, CostModel(CPU, 0.05), Text(0.0, random.Random(1)), 200)
    first.close(1)
    kept = first.history()
    second = Controller(CostModel(CPU, 0.05, 0.005), 0.4, kept)
    second.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    assert second.state(1)[0] is SpeculationState.ACTIVE, "it may try, with the learned rates"
    believed = second.history().bands
    means = [[mean for mean, _ in band.by_confidence] for band in (*believed, *kept.bands)]
    assert means[0] == means[1]
    assert believed[0].gain == pytest.approx(kept.bands[0].gain)
    assert kept.bands[0].n_requests == 1


def test_the_pairs_gain_comes_from_measured_times() -> None:
    """It is parked, and drafts again to its end: its last steps alone would speak of a gain."""
    controller, truth = make(CPU), CostModel(CPU, 0.05)
    controller.open(1, None, SpeculationMode.AUTO, 0.3, [MODEL])
    for _ in range(40):
        controller.measure(1, DrafterKind.MODEL, 1, 2.0, 1.0)
    run(controller, truth, Text(0.0, random.Random(1)), 200)
    assert controller.state(1) == (SpeculationState.PARKED, DOES_NOT_PAY)
    run(controller, truth, Text(0.95, random.Random(2)), 800)
    assert controller.state(1) == (SpeculationState.ACTIVE, "")
    for _ in range(10):
        controller.measure(1, DrafterKind.MODEL, 3, 1.5, 1.0)
    controller.close(1)
    [band] = controller.history().bands
    assert band.gain == pytest.approx((40 * 1 + 10 * 3) / (40 * 2.0 + 10 * 1.5))
    controller.measure(1, DrafterKind.MODEL, 99, 0.1, 1.0)  # it has ended
    assert controller.history().bands == (band,)


def test_the_newest_requests_count_most() -> None:
    controller = make(CPU)
    for request_id, tokens in ((1, 200), (2, 3)):
        controller.open(request_id, None, SpeculationMode.AUTO, 0.3, [MODEL])
        for _ in range(tokens):
            controller.measure(request_id, DrafterKind.MODEL, 1, tokens / 100 + 0.5, 1.0)
        controller.close(request_id)
    [band] = controller.history().bands
    # Of the first, whose steps took two and a half passes each, 200 passes are left.
    assert band.gain == pytest.approx((200 / 2.5 + 3) / (200 + 3 * 0.53))


def test_bins_of_another_version_are_ignored() -> None:
    first = make(CPU)
    first.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    run(first, CostModel(CPU, 0.05), Text(0.9, random.Random(1)), 50)
    first.close(1)
    band = first.history().bands[0]
    odd = replace(band, by_confidence=band.by_confidence[:3])
    unknown = replace(band, drafter="oracle")
    second = Controller(CostModel(CPU), 0.4, PairHistory(bands=(odd, unknown)))
    assert [b.drafter for b in second.history().bands] == [MODEL]
    assert second.history().bands[0].by_confidence != odd.by_confidence


def test_bench_lengths_teach_nothing() -> None:
    controller = make(CPU)
    controller.open(1, 5, SpeculationMode.FIXED, 0.8, [MODEL])
    run(controller, CostModel(CPU, 0.05), Text(0.0, random.Random(1)), 50)
    controller.close(1)
    controller.open(2, None, SpeculationMode.AUTO, 0.8, [MODEL])
    assert controller.state(2)[0] is SpeculationState.ACTIVE
    assert all(b.n_requests == 0 for b in controller.history().bands)


def long_prompt(controller: Controller, n_missed: int, n_left: int) -> bool:
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    asked = controller.plan(1, n_missed, 1, (), n_left) > 0
    controller.close(1)
    return asked


def test_the_drafter_reads_a_prompt_only_if_the_answer_can_pay() -> None:
    # Reading 200 tokens costs as much as a plain pass.
    assert not long_prompt(make(CPU), 200, 8)
    assert long_prompt(make(CPU), 200, 500)
    assert long_prompt(make(CPU), 60, 16)


def test_a_slow_prompt_allows_the_drafter_to_read_it() -> None:
    """Else two passes are all that may be lost, and 2000 tokens cost as much as 10."""
    for seconds, asks in ((0.0, False), (150.0, False), (250.0, True)):
        controller = make(CPU)
        controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
        controller.observe_prompt(1, seconds)
        assert (controller.plan(1, 2000, 1) > 0) == asks


def test_a_parked_drafter_reads_no_long_prompt_for_a_probe() -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    run(controller, CostModel(CPU, 0.05), Text(0.0, random.Random(1)), 100)
    controller.close(1)
    controller.open(2, None, SpeculationMode.AUTO, 0.8, [MODEL])
    for _ in range(100):
        assert controller.plan(2, 4000, 1) == 0
        controller.choose([(2, [])])
        controller.observe_step(2, NO_DRAFTER, 0, 0, [])


@pytest.mark.parametrize("costs", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_text_that_becomes_easy_is_noticed(costs: dict[int, float]) -> None:
    truth = CostModel(costs, 0.05)
    controller = make(costs)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    run(controller, truth, Text(0.0, random.Random(1)), 600)
    run(controller, truth, Text(0.92, random.Random(2)), 600)
    late = run(controller, truth, Text(0.92, random.Random(3)), 600)
    assert late.speed > 1.3
    assert controller.state(1)[0] is SpeculationState.ACTIVE


def test_a_parked_model_is_reported_beside_an_idle_lookup() -> None:
    controller = make(CPU)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL, LOOKUP])
    run(controller, CostModel(CPU, 0.05), Text(0.0, random.Random(1)), 100)
    state, reason = controller.state(1)
    assert state is SpeculationState.PARKED
    look_up(controller, True, 10)
    assert controller.state(1) == (SpeculationState.ACTIVE, reason)


def answer(controller: Controller, n_prompt: int, n_tokens: int, *, n_left: int = 1 << 31) -> int:
    """Run a request whose drafts are nearly always right; return how many steps drafted."""
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    n_missed, n_said, n_drafting = n_prompt, 0, 0
    while n_said < n_tokens:
        limit = controller.plan(1, n_missed, 1, (), n_left - n_said)
        margins = [9.0] * min(limit, 4)
        ((sent_by, n),) = controller.choose([(1, margins)])
        guesses: list[Guess] = [(MODEL, margins, len(margins), len(margins))] if margins else []
        controller.observe_step(1, sent_by, n, n, guesses)
        n_said += n + 1
        n_missed = 0 if margins else n_missed + 1
        n_drafting += bool(margins)
    controller.close(1)
    return n_drafting


def parked(costs: dict[int, float], catch_up_s: float) -> Controller:
    """Return a controller parked by bad first answers to short prompts."""
    controller = Controller(CostModel(costs, 0.05, catch_up_s), None)
    for _ in range(8):
        controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
        run(controller, CostModel(costs, 0.05), Text(0.0, random.Random(1)), 200)
        controller.close(1)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    assert controller.state(1)[0] is SpeculationState.PARKED
    controller.close(1)
    return controller


def test_long_prompts_do_not_keep_a_drafter_parked_for_ever() -> None:
    """Reading one takes 15 passes: more than any probe may cost."""
    controller = parked(GPU, 0.01)
    assert any(answer(controller, 1500, 1500) for _ in range(40))


def test_short_answers_do_not_keep_a_drafter_parked_for_ever() -> None:
    """Reading takes 2 passes, and an answer of 32 tokens may spend 1.6 on a probe."""
    controller = parked(GPU, 0.004)
    assert any(answer(controller, 490, 32, n_left=32) for _ in range(60))


def test_a_long_answer_probes_despite_much_reading() -> None:
    """Each step adds more to be read than all probes of the pair may cost."""
    controller = Controller(CostModel(GPU, 0.05, 0.01), None)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    run(controller, CostModel(GPU, 0.05), Text(0.0, random.Random(1)), 400)
    controller.close(1)
    assert answer(controller, 100, 3000) > 100


def test_a_history_of_losses_does_not_prevent_a_trial() -> None:
    """Whether it reads a long prompt is decided as for a new pair."""
    lost = BandHistory(drafter=MODEL, band=2, gain=0.95, n_requests=5000, n_drafted=150)
    for history in (None, PairHistory(bands=(lost,))):
        controller = Controller(CostModel(GPU, 0.05, 0.01), None, history)
        assert answer(controller, 600, 600) > 0
