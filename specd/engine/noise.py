"""Gumbel noise as a function of (seed, position, token): no state, so no run can disturb another.

Sharing it between target and drafter is what makes drafting coupled (Daliri, Musco, Suresh:
arXiv 2408.07978); see docs/speculation.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_11 = (np.uint64(n) for n in (30, 27, 31, 11))
_STEP = np.uint64(_GOLDEN)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: OOPSLA 2014), element by element."""
    x = (x ^ (x >> _SHIFT_30)) * _MIX_1
    x = (x ^ (x >> _SHIFT_27)) * _MIX_2
    return x ^ (x >> _SHIFT_31)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def stream_key(seed: int, position: int) -> int:
    """64 bits that name one generated position of one seeded stream."""
    return _mix_int((_mix_int((seed + _GOLDEN) & _MASK) + position * _GOLDEN) & _MASK)


def uniform(seed: int, position: int, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Independent uniforms on (0, 1), one per token id; neither end is ever returned."""
    key = np.uint64(stream_key(seed, position))
    bits = _mix(key + (tokens.astype(np.uint64) + np.uint64(1)) * _STEP)
    # 53 random bits and half a step: the open interval, exactly representable.
    return ((bits >> _SHIFT_11).astype(np.float64) + 0.5) * (2.0**-53)


def gumbel(seed: int, position: int, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for each token id at one generated position."""
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform(seed, position, tokens)))
    return noise
