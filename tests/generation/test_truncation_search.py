"""The search for the truncation point of a chat, compared with a linear search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from hypothesis import example, given
from hypothesis import strategies as st

from specd.generation.truncation_search import TruncationSearch


def searched(
    sizes: Sequence[float], tokens: Sequence[int], n_ctx: int, accepted: Sequence[bool] = ()
) -> tuple[int, list[int]]:
    """Return the cut that the search finds, and the cuts that it tried.

    tokens: of each droppable turn.  accepted: by the number of turns dropped, whether the template
    takes what is left; where it does not, more are dropped.
    """
    n_whole = sum(tokens)
    lengths = [n_whole, *(n_whole - n_gone for n_gone in accumulate(tokens))]
    search = TruncationSearch(sizes, sum(sizes), n_ctx)
    guesses = []
    while (found := search.found) is None:
        guesses.append(search.guess())
        n_rendered = guesses[-1]
        while accepted and not accepted[n_rendered]:
            n_rendered += 1
        fits = search.fits(guesses[-1], lengths[n_rendered], n_rendered=n_rendered)
        assert fits == (lengths[n_rendered] <= n_ctx)
    return found, guesses


def every_cut_tried(tokens: Sequence[int], n_ctx: int) -> int:
    """Return the cut found as Ollama does: drop one more turn until the rest fits."""
    n_left = sum(tokens)
    for n, next_turn in enumerate(tokens):
        if n_left <= n_ctx:
            return n
        n_left -= next_turn
    return len(tokens)


turns = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10_000)), min_size=1, max_size=100)


@given(turns, st.integers(1, 100_000))
@example([(5.0, 3)] * 300, 1)
@example([(0.0, 0)] * 300, 1)
@example([(1e6, 1)] * 300, 150)
@example([(0.1, 100)] * 300, 150)
@example([(0.0, 1)] * 300, 150)
def test_the_search_finds_the_same_cut_as_a_linear_search(
    turns: list[tuple[float, int]], n_ctx: int
) -> None:
    sizes, tokens = [size for size, _ in turns], [n for _, n in turns]
    found, guesses = searched(sizes, tokens, n_ctx)
    assert found == every_cut_tried(tokens, n_ctx)
    assert len(guesses) == len(set(guesses)) <= 3 + 5 * math.log2(len(turns) + 1)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 1000),
)
def test_a_refused_cut_counts_as_the_next_accepted_one(
    turns: list[tuple[int, bool]], n_ctx: int
) -> None:
    tokens = [n for n, _ in turns]
    accepted = [True, *(accepts for _, accepts in turns[:-1]), True]
    found, _ = searched([1.0] * len(turns), tokens, n_ctx, accepted)
    least = every_cut_tried(tokens, n_ctx)
    while least > 0 and not accepted[least - 1]:
        least -= 1
    assert found == least


def test_no_prompt_much_longer_than_the_context_is_tried() -> None:
    n_ctx, each = 4096, 7
    found, guesses = searched([31.0] * 30_000, [each] * 30_000, n_ctx)
    assert found == 30_000 - n_ctx // each
    assert sum((30_000 - guess) * each for guess in guesses) < 8 * n_ctx


def test_a_prompt_that_is_too_long_is_not_tried_again_for_a_refused_cut() -> None:
    n_ctx, n_turns = 150, 300
    accepted = [n % 40 == 0 or n == n_turns for n in range(n_turns + 1)]
    search = TruncationSearch([1.0] * n_turns, n_turns, n_ctx)
    too_long = []
    while search.found is None:
        guess = search.guess()
        n_rendered = accepted.index(True, guess)
        if not search.fits(guess, n_turns - n_rendered, n_rendered=n_rendered):
            too_long.append(n_rendered)
    assert too_long
    assert len(too_long) == len(set(too_long))
    assert accepted.index(True, search.found) == 160
