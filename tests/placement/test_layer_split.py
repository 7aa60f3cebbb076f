"""Check how layers are distributed over devices."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

from hypothesis import given
from hypothesis import strategies as st

from specd.placement.layer_split import split_layers

LAYERS = st.lists(st.integers(0, 40), min_size=1, max_size=7)
ROOMS = st.lists(st.integers(0, 120), min_size=1, max_size=3)
BESIDE = st.integers(0, 20)


def test_devices_with_equal_memory_get_equal_parts() -> None:
    assert split_layers([10] * 8, [100, 100]) == (4, 4)
    assert split_layers([10] * 9, [100, 50]) == (6, 3)


def test_other_memory_of_a_device_is_counted_on_that_device() -> None:
    assert split_layers([10] * 4, [30, 30], each=10) == (2, 2)
    assert split_layers([10] * 3, [30, 30], each=10, once=10) == (1, 2)
    assert split_layers([10] * 4, [30, 30], each=10, once=10) is None


def test_a_device_with_too_little_memory_is_left_out() -> None:
    assert split_layers([10] * 4, [5, 50]) == (0, 4)
    assert split_layers([10] * 4, [15, 90], once=10) == (0, 4)


def fits(layers: list[int], capacities: list[int], counts: list[int], each: int, once: int) -> bool:
    first = 0
    for capacity, n in zip(capacities, counts, strict=True):
        taken = (
            sum(layers[first : first + n]) + (each if n else 0) + (once if n and not first else 0)
        )
        if n and taken > capacity:
            return False
        first += n
    return first == len(layers)


@given(LAYERS, ROOMS, BESIDE, BESIDE)
def test_layers_are_split_whenever_they_fit(
    layers: list[int], capacities: list[int], each: int, once: int
) -> None:
    ends = combinations_with_replacement(range(len(layers) + 1), len(capacities) - 1)
    ways = ([end - start for start, end in pairwise((0, *inner, len(layers)))] for inner in ends)
    possible = any(fits(layers, capacities, counts, each, once) for counts in ways)
    counts = split_layers(layers, capacities, each=each, once=once)
    assert (counts is not None) == possible
    assert counts is None or fits(layers, capacities, list(counts), each, once)
