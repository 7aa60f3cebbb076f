"""Row allocation equals a full search, and no draft has a gap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.engine.speculative.draft_proposal import (
    RowAllocation,
    RowCandidates,
    SiblingChance,
    allocate_rows,
    sibling_worths,
)

CHANCE = st.floats(0.01, 0.99)
STEPS = st.lists(st.floats(0.0, 0.8), min_size=12, max_size=12)


@st.composite
def candidates(draw: st.DrawFn) -> RowCandidates:
    line = list(itertools.accumulate(draw(st.lists(CHANCE, max_size=4)), lambda a, b: a * b))
    places = draw(st.sets(st.integers(0, 4)))
    return RowCandidates(
        line,
        sibling_worths(line, sorted(places), draw(CHANCE), draw(st.floats(0.0, 1.2))),
        draw(st.integers(0, 3)),
        draw(st.integers(0, 6)),
    )


def worth(one: RowCandidates, share: RowAllocation) -> float:
    return sum(one.line[: share.n]) + sum(one.siblings[at] for at in share.siblings)


def every_share(one: RowCandidates) -> list[RowAllocation]:
    found = []
    for n in range(len(one.line) + 1):
        places = [at for at in one.siblings if at <= n]
        for size in range(one.n_siblings + 1):
            for chosen in itertools.combinations(places, size):
                share = RowAllocation(n, sorted(chosen))
                if share.n_rows <= one.n_rows:
                    found.append(share)
    return found


@settings(max_examples=60, deadline=None)
@given(several=st.lists(candidates(), min_size=1, max_size=2), steps=STEPS)
def test_the_allocation_is_worth_most(
    several: Sequence[RowCandidates], steps: Sequence[float]
) -> None:
    prices = [0.0, *itertools.accumulate(steps)]

    def value(shares: Sequence[RowAllocation]) -> float:
        n_rows = sum(share.n_rows for share in shares)
        whole = sum(worth(one, share) for one, share in zip(several, shares, strict=True))
        return whole - prices[n_rows]

    shares = allocate_rows(several, prices.__getitem__)
    best = max(map(value, itertools.product(*map(every_share, several))))
    assert value(shares) == pytest.approx(best, abs=1e-9)
    for one, share in zip(several, shares, strict=True):
        assert share.n_rows <= one.n_rows
        assert len(share.siblings) <= one.n_siblings
        assert all(at <= share.n for at in share.siblings), "a sibling needs the tokens before it"
        assert share.siblings == sorted(set(share.siblings))


@given(several=st.lists(candidates(), max_size=3), steps=STEPS)
def test_without_siblings_rows_go_to_drafted_tokens(
    several: Sequence[RowCandidates], steps: Sequence[float]
) -> None:
    prices = [0.0, *itertools.accumulate(steps)]
    lines = [RowCandidates(one.line) for one in several]
    for share in allocate_rows(lines, lambda n: prices[min(n, 12)]):
        assert share.siblings == []


def test_a_sibling_with_a_high_row_price_is_worth_nothing() -> None:
    assert sibling_worths([0.5, 0.4], [0, 1], 0.5, 1.0) == {0: 0.0, 1: 0.0}
    assert sibling_worths([0.5, 0.4], [0, 1, 2], 0.5, 0.0) == pytest.approx({0: 0.25, 1: 0.05})


def test_the_sibling_chance_follows_observations() -> None:
    chance = SiblingChance()
    began = chance.mean
    for number in range(400):
        chance.observe(is_right=number % 4 == 0)
    assert chance.mean == pytest.approx(0.25, abs=0.02)
    assert began > chance.mean
    for _ in range(400):
        chance.observe(is_right=True)
    assert chance.mean > 0.8, "the text may turn"
