"""Gumbel noise as a function of (seed, position, token), without state.

Target and drafter share it, which makes drafting coupled (Daliri, Musco, Suresh: arXiv 2408.07978);
see docs/speculation.md.
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
    """Return the finaliser of SplitMix64 for one number."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def stream_key(seed: int, position: int) -> int:
    """Return the 64-bit key of one generated position of one seeded stream."""
    return _mix((_mix((seed + _GOLDEN) & _MASK) + position * _GOLDEN) & _MASK)


def gumbel(key: int, token: int) -> float:
    """Return the standard Gumbel noise of one token at the key's position: −negative_gumbel."""
    x = (token * _GOLDEN + key + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return -math.log(-math.log(((x >> 11) + 0.5) * 2.0**-53))


def uniform(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return independent uniforms on the open interval (0, 1), one per token id."""
    # In place, since each numpy call is slow between two passes, when CPU caches are cold.
    bits = tokens.view(np.uint64) * _STEP
    bits += np.uint64((stream_key(seed, position) + _GOLDEN) & _MASK)
    # The finaliser of SplitMix64 (Steele, Lea, Flood: OOPSLA 2014), element by element, without its
    # last step: that changes only bits that are dropped here or too low to matter.
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
    """Return negated standard Gumbel noise, log(−log u); subtract it from a score."""
    noise = uniform(seed, position, tokens)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    return np.log(noise, out=noise)
