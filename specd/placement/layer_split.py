"""How layers are shared out among devices: in one piece each, and all devices filled alike.

llama.cpp numbers the layers that lie on devices from 0 to n - 1, the output last, and gives number
i to the first device whose part of `tensor_split`, with those before it, is more than i / n.  With
the counts themselves as parts that is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

#: How finely rooms are filled alike.
_STEPS = 1024


def split_layers(
    layers: Sequence[int], capacities: Sequence[int], *, each: int = 0, once: int = 0
) -> tuple[int, ...] | None:
    """How many of the layers, given in bytes, every room takes; None where they do not fit.

    each: what else lies in a room that is used.  once: what else lies in the first of them.
    """
    if (counts := _fill(layers, capacities, each, once)) is None:
        return None
    low, high = 0, _STEPS  # too little, enough
    while high - low > 1:
        middle = (low + high) // 2
        parts = [capacity * middle // _STEPS for capacity in capacities]
        if (alike := _fill(layers, parts, each, once)) is None:
            low = middle
        else:
            counts, high = alike, middle
    return counts


def _fill(
    layers: Sequence[int], capacities: Sequence[int], each: int, once: int
) -> tuple[int, ...] | None:
    """One room after the other, up to its brim: who starts so, needs the fewest."""
    counts = []
    n = 0
    for capacity in capacities:
        left = capacity - each - (once if n == 0 else 0)
        first = n
        while n < len(layers) and layers[n] <= left:
            left -= layers[n]
            n += 1
        counts.append(n - first)
    return tuple(counts) if n == len(layers) else None
