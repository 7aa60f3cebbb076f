"""DRY: the penalty of tokens that would continue a repetition.

The rule is llama.cpp's (src/llama-sampler.cpp, `llama_sampler_dry`); its author's description:
text-generation-webui, pull request 5677.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from specd.core import SamplerChain, TokenId
from specd.engine.sampler import recent_text

#: The logarithm of the largest float of 32 bits; no penalty exceeds that number.
_FLOAT_MAX_LOG: Final = 88.7228391


def is_dry_on(chain: SamplerChain) -> bool:
    return chain.dry_multiplier != 0.0 and chain.dry_base >= 1.0 and chain.dry_penalty_last_n > 0


def dry_penalties(history: Sequence[TokenId], chain: SamplerChain) -> dict[TokenId, float]:
    """Return token → what its logit loses."""
    if not is_dry_on(chain):
        return {}
    newest_first = recent_text(history, chain.dry_penalty_last_n)[::-1]
    n_allowed = chain.dry_allowed_length
    if len(newest_first) <= n_allowed:
        return {}
    longest = _distance_to_breaker(newest_first, chain)
    if longest < n_allowed:
        return {}
    ends = {token for token, tail in chain.dry_breakers if not tail}
    found: dict[TokenId, int] = {}
    for at, length in enumerate(_repetitions(newest_first, longest)[1:], start=1):
        # The token that followed the earlier occurrence would continue the repetition.
        token = newest_first[at - 1]
        if length >= n_allowed and token not in ends:
            found[token] = max(length, found.get(token, 0))
    largest = int(_FLOAT_MAX_LOG / math.log(chain.dry_base)) if chain.dry_base > 1.000001 else 0
    return {
        token: chain.dry_multiplier
        * chain.dry_base ** (min(length - n_allowed, largest) if largest else length - n_allowed)
        for token, length in found.items()
    }


def _distance_to_breaker(newest_first: Sequence[TokenId], chain: SamplerChain) -> int:
    """Return how many tokens follow the last sequence that ends a repetition; all if none does."""
    tails: dict[TokenId, list[tuple[TokenId, ...]]] = {}
    for token, tail in chain.dry_breakers:
        tails.setdefault(token, []).append(tail)
    for at, token in enumerate(newest_first):
        matches = [
            len(tail)
            for tail in tails.get(token, ())
            if len(tail) <= at and tail == tuple(newest_first[at - len(tail) : at][::-1])
        ]
        if matches:
            return at - max(matches)
    return len(newest_first)


def _repetitions(newest_first: Sequence[TokenId], longest: int) -> list[int]:
    """Return, for each place, how many tokens from there on equal the first ones, up to `longest`.

    The Z-algorithm, in time that is linear in the number of tokens.
    """
    n = len(newest_first)
    lengths, left, right = [0] * n, 0, 0
    for at in range(1, n):
        length = min(lengths[at - left], right - at) if at < right else 0
        while at + length < n and newest_first[length] == newest_first[at + length]:
            length += 1
        lengths[at] = length
        if at + length > right:
            left, right = at, at + length
    return [min(length, longest) for length in lengths]
