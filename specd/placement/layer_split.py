"""Split layers among devices: one contiguous range each, all devices filled to the same share.

llama.cpp numbers the offloaded layers from 0 to n - 1, the output last.  It gives layer i to the
first device whose cumulative share of `tensor_split` exceeds i / n.  With layer counts as shares
the result is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Resolution of the share to which all devices are filled.
_STEPS = 1024


def split_layers(
    layers: Sequence[int], capacities: Sequence[int], *, each: int = 0, once: int = 0
) -> tuple[int, ...] | None:
    """Return the number of layers for each capacity; None if they do not fit.

    layers, capacities: bytes.  each: further bytes on every used device.
    once: further bytes on the first used device.
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
    """Return the counts if each device is filled completely before the next one; None if too much.

    This uses the fewest devices.
    """
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
