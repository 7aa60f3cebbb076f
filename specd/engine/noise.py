"""Gumbel noise as a function of (seed, position, token): no state, so no run can disturb another.

Sharing it between target and drafter is what makes drafting coupled (Daliri, Musco, Suresh:
arXiv 2408.07978); see docs/speculation.md.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_11 = (np.uint64(n) for n in (30, 27, 11))
_STEP = np.uint64(_GOLDEN)


def _mix(x: int) -> int:
    """The finaliser of SplitMix64 for one number."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def stream_key(seed: int, position: int) -> int:
    """64 bits that name one generated position of one seeded stream."""
    return _mix((_mix((seed + _GOLDEN) & _MASK) + position * _GOLDEN) & _MASK)


def gumbel(key: int, token: int) -> float:
    """Standard Gumbel noise of one token at the position that the key names; −negative_gumbel."""
    x = (token * _GOLDEN + key + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return -math.log(-math.log(((x >> 11) + 0.5) * 2.0**-53))


def uniform(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Independent uniforms on (0, 1), one per token id; neither end is ever returned.

    In place throughout: between two passes the caches are cold and each numpy call is dear.
    """
    bits = tokens.view(np.uint64) * _STEP
    bits += np.uint64((stream_key(seed, position) + _GOLDEN) & _MASK)
    # The finaliser of SplitMix64 (Steele, Lea, Flood: OOPSLA 2014), element by element, but for
    # its last step, which stirs only bits that are dropped here or far below what a draw can tell.
    bits ^= bits >> _SHIFT_30
    bits *= _MIX_1
    bits ^= bits >> _SHIFT_27
    bits *= _MIX_2
    bits >>= _SHIFT_11
    # 53 random bits and half a step: the open interval, exactly representable.
    drawn = bits + np.float64(0.5)
    drawn *= 2.0**-53
    return drawn


def negative_gumbel(
    seed: int, position: int, tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise with its sign turned: log(−log u), to be subtracted from a score."""
    noise = uniform(seed, position, tokens)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    return np.log(noise, out=noise)
