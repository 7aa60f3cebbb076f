"""Test that no history file makes an answer lose more than its bound."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.adversarial import with_useless_drafts
from benchmarks.simulator.bounds import ALLOWED_PASSES
from benchmarks.simulator.curves import CURVES, Curve
from benchmarks.simulator.engine import SimulatedEngine, SimulatedRequest
from specd.core import BandHistory, DrafterKind, PairHistory
from tests.benchmarks import synthetic_traces

GOOD = synthetic_traces.answer(0.8, 1)
ANSWERS = (GOOD, with_useless_drafts(GOOD), replace(GOOD, temperature=0.0))

numbers = st.one_of(
    st.floats(-2.0, 2.0), st.floats(-1e12, 1e12), st.sampled_from((0.0, -1.0, 1.0, 100.0))
)
estimates = st.lists(st.tuples(numbers, numbers), max_size=18).map(tuple)
#: As many bins as there are, so that they are believed.
all_bins = st.lists(st.tuples(numbers, numbers), min_size=9, max_size=9).map(tuple)
bands = st.builds(
    BandHistory,
    drafter=st.sampled_from((*DrafterKind, "", "another")),
    band=st.integers(-1, 5),
    by_confidence=st.one_of(estimates, all_bins),
    by_depth=estimates,
    parked=st.sampled_from(("", "does_not_pay", "low_acceptance", "a reason of another version")),
    gain=st.none() | numbers,
    n_requests=st.integers(-5, 10**9),
    n_drafted=st.integers(-5, 10**9),
    n_accepted=st.integers(-5, 10**9),
)
histories = st.builds(
    PairHistory,
    bands=st.lists(bands, max_size=8).map(tuple),
    device=st.text(max_size=5),
    target_s=st.lists(st.tuples(st.integers(-1, 40), numbers), max_size=4).map(tuple),
)


@settings(max_examples=40, deadline=None)
@given(histories, st.sampled_from(CURVES), st.integers(2, 40))
def test_no_history_makes_an_answer_lose_more_than_its_bound(
    history: PairHistory, costs: Curve, end: int
) -> None:
    engine = SimulatedEngine(costs, history=history)
    for answer in ANSWERS:
        answered = engine.answer(SimulatedRequest(answer, end))
        assert answered.done.usage.n_generated == end
        assert round(answered.excess, 2) <= ALLOWED_PASSES
    # The next engine must accept the history that this one stores.
    SimulatedEngine(costs, history=engine.controller.history()).answer(SimulatedRequest(GOOD, end))
