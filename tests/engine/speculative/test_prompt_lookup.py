"""Prompt lookup finds only tokens that followed the same tokens before."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specd.engine.speculative.prompt_lookup import MAX_MATCH, NGRAM_SIZES, PromptLookup

histories = st.lists(st.integers(0, 3), max_size=120)
SHORTEST = min(NGRAM_SIZES)


def naive_matches(history: list[int], at: int) -> int:
    n = 0
    while n < min(at, MAX_MATCH) and history[at - 1 - n] == history[-1 - n]:
        n += 1
    return n


@given(histories, st.integers(0, 12))
def test_a_draft_continues_an_earlier_match(history: list[int], n: int) -> None:
    found = PromptLookup(1).find(0, history, n)
    assert len(found.tokens) == len(found.matches)
    if not found.tokens:
        return
    assert len(found.tokens) == n
    said = history + list(found.tokens)
    places = [
        at
        for at in range(SHORTEST, len(history))
        if naive_matches(history, at) == found.matches[0]
        and all(said[at + i] == token for i, token in enumerate(found.tokens))
    ]
    assert places, "the draft is a copy of what followed the match, which may run into itself"
    assert list(found.matches) == [found.matches[0] + i for i in range(n)]


def test_a_draft_ends_where_an_image_follows() -> None:
    history = [1, 2, 3, 4, -9, -9, 5, 1, 2, 3]
    found = PromptLookup(1).find(0, history, 8)
    assert (list(found.tokens), list(found.matches)) == ([4], [3.0])
    assert not PromptLookup(1).find(0, [1, 2, 3, -9, -9, 5, 1, 2, 3], 8).tokens


@given(histories)
def test_every_match_of_the_shortest_n_gram_is_found(history: list[int]) -> None:
    end = tuple(history[-SHORTEST:])
    seen = (
        any(tuple(history[at - SHORTEST : at]) == end for at in range(SHORTEST, len(history)))
        and len(history) > SHORTEST
    )
    assert bool(PromptLookup(1).find(0, history, 4).tokens) == seen


@given(st.lists(st.tuples(st.sampled_from(["add", "rewind", "begin"]), st.integers(0, 40))))
def test_a_reused_index_finds_what_a_new_one_finds(
    operations: list[tuple[str, int]],
) -> None:
    """Stale places may hide a match that a new table would find, but never invent one."""
    lookup = PromptLookup(2)
    history: list[int] = []
    for name, value in operations:
        if name == "add":
            history.append(value % 4)
        elif name == "rewind":
            del history[value:]
            lookup.rewind(1, len(history))
        else:
            history = [value % 4] * 5
            lookup.begin(1)
        found = lookup.find(1, history, 3)
        if found.tokens:
            n = int(found.matches[0])
            assert any(naive_matches(history, at) >= n for at in range(SHORTEST, len(history)))


def test_corrections_after_a_rewind_are_indexed() -> None:
    lookup = PromptLookup(1)
    lookup.find(0, [*range(1, 21)], 2)
    lookup.rewind(0, 4)
    found = lookup.find(0, [1, 2, 3, 4, 30, 31, 32, 33, 9, 30, 31, 32], 1)
    assert list(found.tokens) == [33]


def test_a_match_at_the_end_is_ignored() -> None:
    """A longer history left the index entry; the tokens after it have been removed."""
    lookup = PromptLookup(1)
    lookup.find(0, [1, 2, 3, 4, 5], 2)
    lookup.rewind(0, 4)
    assert not lookup.find(0, [1, 2, 3, 4], 2).tokens


def test_a_stale_match_is_ignored() -> None:
    lookup = PromptLookup(1)
    lookup.find(0, [1, 2, 3, 4, 5], 2)
    lookup.rewind(0, 1)
    assert not lookup.find(0, [1, 7, 3, 8, 1, 2, 3], 2).tokens


def test_a_repetition_continues_past_the_end() -> None:
    found = PromptLookup(1).find(0, [9, 1, 2, 1, 2, 1, 2, 1], 6)
    assert list(found.tokens) == [2, 1, 2, 1, 2, 1]


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    long, other = [1, 2, 3, 4, 5, 6, 7, 8], [0, 6, 7, 8, 77]
    found = PromptLookup(1).find(0, [*long, 55, *other, *long], 1)
    assert list(found.tokens) == [55]


def test_slots_have_separate_indexes() -> None:
    lookup = PromptLookup(2)
    lookup.find(0, [1, 2, 3, 4, 1, 2, 3], 2)
    assert not lookup.find(1, [1, 2, 3], 2).tokens


def test_a_long_prompt_is_indexed_over_several_steps() -> None:
    history = [*range(20_000), 19_990, 19_991, 19_992]
    lookup = PromptLookup(1)
    assert not lookup.find(0, history, 1).tokens
    finds = [lookup.find(0, history, 1).tokens for _ in range(6)]
    assert list(finds[-1]) == [19_993]


def test_the_work_of_a_step_does_not_grow_with_the_history() -> None:
    """Count tokens read, not time."""
    lookup = PromptLookup(1)

    class Counting(list[int]):
        n_read = 0

        def __getitem__(self, key: Any) -> Any:
            Counting.n_read += 1
            return super().__getitem__(key)

    reads = []
    for n in (300, 3000):
        history = Counting([i % 97 for i in range(n)])
        lookup.begin(0)
        lookup.find(0, history, 8)
        Counting.n_read = 0
        history.append(n % 97)
        lookup.find(0, history, 8)
        reads.append(Counting.n_read)
    assert reads[1] <= reads[0] + 8
