"""How many control tokens a text has at most, counted without tokenizing it.

llama.cpp looks for control and user-defined tokens before it tokenizes the rest, and the time that
this takes grows with the square of their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

#: Of one text: some seconds of searching.
MAX_CONTROL_TOKENS: Final = 2**15
#: Vocabularies have thousands of such tokens, with few beginnings.
_PREFIX_CHARACTERS: Final = 6


@dataclass(frozen=True, slots=True)
class ControlSpellings:
    """How the tokens begin, each beginning once; blanks: those that repeat one blank.

    blanks: character → the shortest and the longest of its tokens, in characters.
    """

    prefixes: tuple[str, ...]
    blanks: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, spellings: Iterable[str]) -> ControlSpellings:
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
        """A run of a blank becomes as few tokens as there are for it."""
        shortest, longest = self.blanks[blank]
        runs = re.finditer(f"{re.escape(blank)}{{{shortest},}}", text)
        return sum(-(-len(run[0]) // longest) for run in runs)
