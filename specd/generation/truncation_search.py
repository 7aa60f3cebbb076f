"""Find how many of a chat's oldest turns to leave out, with few prompts.

A prompt is expensive: a template renders it, and llama.cpp's time to tokenize it grows with the
square of its control tokens.  So each guess uses the sizes of the turns and the token counts of the
prompts tried before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

#: Assumed before the first count.  High, so that a chat that may fit is tried whole.
_BYTES_PER_TOKEN: Final = 4.0
#: One guess in this many ignores the sizes, which may be misleading.
_IGNORE_SIZES_EVERY: Final = 3


class TruncationSearch:
    """The search for the smallest number of dropped turns with which the prompt fits.

    It assumes that dropping more turns never adds tokens.  Dropping all of them is the last resort
    and is not tried.
    """

    def __init__(self, sizes: Sequence[float], n_bytes: float, n_ctx: int) -> None:
        """Start the search.

        sizes: about how many bytes each droppable turn adds to the prompt, the oldest turn first.
        n_bytes: bytes of the prompt with all turns.  n_ctx: tokens that fit.
        """
        #: Bytes saved, by the number of turns dropped.
        self._saved = [0.0, *accumulate(sizes)]
        self._n_bytes = n_bytes
        self._n_ctx = n_ctx
        #: The answer is larger than the first and not larger than the second.
        self._too_few = -1
        self._enough = len(sizes)
        #: Turns dropped and tokens of each prompt tried.
        self._tried: list[tuple[int, int]] = []

    @property
    def found(self) -> int | None:
        """The number of turns to drop; None while there is more to try."""
        return self._enough if self._enough - self._too_few <= 1 else None

    def guess(self) -> int:
        """Return the number of dropped turns to try next."""
        first, last = self._too_few + 1, self._enough - 1
        guess = self._estimate()
        n_tried = len(self._tried)
        if n_tried % _IGNORE_SIZES_EVERY == _IGNORE_SIZES_EVERY - 1:
            if self._too_few >= 0:
                guess = (first + last) // 2
            else:
                # Half of a long chat may still be very long: add turns in steps that double.
                guess = min(guess, last - 2 ** (n_tried // _IGNORE_SIZES_EVERY))
        return min(max(guess, first), last)

    def fits(self, n_dropped: int, n_tokens: int, *, n_rendered: int) -> bool:
        """Record the tokens of a prompt and return whether it fits.

        n_rendered: the number of turns that the prompt lacks.  It exceeds n_dropped if the template
        refused n_dropped: the prompt then counts for all numbers in between.
        """
        does_fit = n_tokens <= self._n_ctx
        if does_fit:
            self._enough = n_dropped
        else:
            self._too_few = n_rendered
        self._tried.append((n_rendered, n_tokens))
        return does_fit

    def _estimate(self) -> int:
        """Return the smallest number of dropped turns that should fit, by the sizes."""
        if not self._tried:
            n_bytes = self._n_bytes - self._n_ctx * _BYTES_PER_TOKEN
            return bisect_left(self._saved, n_bytes)
        nearest = sorted(self._tried, key=lambda tried: abs(tried[1] - self._n_ctx))
        n_dropped, n_tokens = nearest[0]
        n_bytes = (n_tokens - self._n_ctx) * self._bytes_per_token(nearest)
        return bisect_left(self._saved, self._saved[n_dropped] + n_bytes)

    def _bytes_per_token(self, nearest: Sequence[tuple[int, int]]) -> float:
        """Return bytes per token, from the two prompts nearest to the context or the only one."""
        n_dropped, n_tokens = nearest[0]
        for other_dropped, other_tokens in nearest[1:]:
            if other_tokens != n_tokens:
                n_bytes = self._saved[other_dropped] - self._saved[n_dropped]
                return n_bytes / (n_tokens - other_tokens)
        return (self._n_bytes - self._saved[n_dropped]) / max(n_tokens, 1)
