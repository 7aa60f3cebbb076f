"""Token counts and positions convert both ways, with any images between."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specd.engine.llama.context import PositionMap
from specd.engine.media import Media, Plane


def flat(n_tokens: int) -> Media:
    return Media(token=-1, n_tokens=n_tokens, n_positions=n_tokens)


def square(side: int) -> Media:
    """Return an image of side · side tokens, all with the same temporal position."""
    n = side * side
    steps = np.arange(n, dtype=np.int32)
    origin = np.array([0 * steps, steps // side, steps % side, 0 * steps], np.int32)
    moves = np.array([[1], [1], [1], [0]], np.int32) * np.ones(n, np.int32)
    return Media(token=-2, n_tokens=n, n_positions=side, plane=Plane(origin, moves))


parts = st.lists(
    st.one_of(
        st.integers(1, 5),
        st.integers(1, 6).map(flat),
        st.integers(1, 4).map(square),
    ),
    max_size=8,
)


@given(parts, st.data())
def test_token_counts_and_positions_convert_both_ways(
    prompt: list[int | Media], data: st.DataObject
) -> None:
    layout = PositionMap()
    cache_end: list[int] = []  # of each token, its position in the cache
    starts: dict[int, Media] = {}
    n_next = 0
    for part in prompt:
        assert layout.position(len(cache_end)) == n_next
        if isinstance(part, int):
            cache_end += range(n_next, n_next + part)
            n_next += part
        else:
            starts[len(cache_end)] = part
            layout.add(len(cache_end), part)
            cache_end += part.positions(n_next)[0].tolist()
            n_next += part.n_positions
    n = data.draw(st.integers(0, len(cache_end)))
    without_cut_media = next((f for f, m in starts.items() if f < n < f + m.n_tokens), n)
    assert layout.without_cut_media(n) == without_cut_media
    end = max(cache_end[:without_cut_media], default=-1) + 1
    assert layout.cache_end(without_cut_media) in {end, layout.position(without_cut_media)}
    assert layout.tokens(layout.cache_end(without_cut_media)) == without_cut_media
    layout.truncate(without_cut_media)
    assert layout.position(without_cut_media) == (
        n_next if without_cut_media == len(cache_end) else next_position(prompt, without_cut_media)
    )


def next_position(prompt: list[int | Media], n: int) -> int:
    """Return the position of the token at index n, which begins an image or is text."""
    position = 0
    for part in prompt:
        n_tokens, n_positions = (
            (part, part) if isinstance(part, int) else (part.n_tokens, part.n_positions)
        )
        if n < n_tokens:
            return position + n
        n, position = n - n_tokens, position + n_positions
    return position


def test_a_partial_image_counts_as_no_tokens() -> None:
    layout = PositionMap()
    layout.add(3, flat(6))
    assert [layout.tokens(cache_end) for cache_end in (0, 3, 4, 8, 9, 12)] == [0, 3, 3, 3, 9, 12]
    layout = PositionMap()
    layout.add(3, square(4))
    assert [layout.tokens(cache_end) for cache_end in (3, 4, 7, 9)] == [3, 19, 19, 21]
