"""An upper bound on the number of control tokens in a text, counted without tokenizing it.

llama.cpp searches control and user-defined tokens before it tokenizes the rest.  The time for that
grows with the square of their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

#: Most control tokens in one text: a few seconds of search.
MAX_CONTROL_TOKENS: Final = 2**15
#: Length of the prefixes that are counted: thousands of control tokens share few prefixes.
_PREFIX_CHARACTERS: Final = 6


@dataclass(frozen=True, slots=True)
class ControlSpellings:
    """The spellings of a vocabulary's control tokens, condensed for counting.

    prefixes: the first characters of the tokens, each once.
    blanks: for tokens that repeat one blank: the blank → shortest and longest, in characters.
    """

    prefixes: tuple[str, ...]
    blanks: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, spellings: Iterable[str]) -> ControlSpellings:
        """Return the condensed form of all spellings."""
        blanks: dict[str, tuple[int, int]] = {}
        words: set[str] = set()
        for spelling in filter(None, spellings):
            if spelling[0].isspace() and len(set(spelling)) == 1:
                shortest, longest = blanks.get(spelling[0], (len(spelling), 0))
                n = len(spelling)
                blanks[spelling[0]] = min(shortest, n), max(longest, n)
            else:
                words.add(spelling[:_PREFIX_CHARACTERS])
        prefixes: list[str] = []
        for prefix in sorted(words):
            if not prefixes or not prefix.startswith(prefixes[-1]):
                prefixes.append(prefix)
        return cls(tuple(prefixes), blanks)

    def count(self, text: str) -> int:
        """Return the number of tokens that llama.cpp may find in the text, or more."""
        n_words = sum(map(text.count, self.prefixes))
        return n_words + sum(self._count_runs(text, blank) for blank in self.blanks)

    def _count_runs(self, text: str, blank: str) -> int:
        """Return the number of tokens for runs of a blank; each run becomes as few as possible."""
        shortest, longest = self.blanks[blank]
        runs = re.finditer(f"{re.escape(blank)}{{{shortest},}}", text)
        return sum(-(-len(run[0]) // longest) for run in runs)
