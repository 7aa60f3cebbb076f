"""Every position of some answers as arrays: what the model drafts there, and what lookup finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from benchmarks.simulator.trace import Answer
from specd.core import DrafterKind
from specd.engine.speculative.acceptance import EDGES
from specd.engine.speculative.controller import MAX_DRAFT
from specd.engine.speculative.prompt_lookup import PromptLookup

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: What a chance of one bin at one depth is taken to be known from already: the bin's at any depth,
#: and that of all bins.
_OF_BIN, _OF_ALL = 8.0, 2.0
N_BINS = max(map(len, EDGES.values())) + 1


@dataclass(frozen=True, slots=True)
class LookupGuess:
    """What prompt lookup finds at a position, and how many of its tokens are right."""

    n_right: int
    matches: Sequence[float]


def lookup_guesses(answer: Answer) -> Sequence[LookupGuess]:
    """By position; nothing before the first token of the answer."""
    if answer not in _FOUND:
        _FOUND[answer] = [LookupGuess(0, ()), *_look_up(answer)]
    return _FOUND[answer]


_FOUND: WeakKeyDictionary[Answer, list[LookupGuess]] = WeakKeyDictionary()


def _look_up(answer: Answer) -> list[LookupGuess]:
    lookup, whole, first = PromptLookup(1), [*answer.prompt, *answer.tokens], len(answer.prompt)
    several = []
    for at in range(1, len(answer.tokens)):
        guess = lookup.find(0, whole[: first + at], MAX_DRAFT)
        n_right = 0
        for token, said in zip(guess.tokens, answer.tokens[at:], strict=False):
            if token != said:
                break
            n_right += 1
        several.append(LookupGuess(n_right, guess.matches))
    return several


@dataclass(frozen=True, slots=True)
class Guesses:
    """One drafter at every position: lengths and right ones [n], bins of confidence [n, depth]."""

    lengths: Ints
    n_right: Ints
    bins: Ints

    @classmethod
    def of(
        cls,
        kind: DrafterKind,
        answers: Sequence[Answer],
        draft: Callable[[Answer, int], tuple[int, Sequence[float]]],
    ) -> Guesses:
        """draft: answer and position → right guesses, and the confidences of all of them."""
        drafts = [draft(a, at) for a in answers for at in range(1, len(a.tokens))]
        confidences = np.full((len(drafts), MAX_DRAFT), np.inf)
        for row, (_, several) in enumerate(drafts):
            confidences[row, : len(several)] = several
        return cls(
            np.array([len(several) for _, several in drafts]),
            np.array([n_right for n_right, _ in drafts]),
            np.searchsorted(np.array(EDGES[kind]), confidences, side="right"),
        )

    def table(self) -> tuple[Floats, Floats]:
        """The true chance of a guess by bin and depth [bin, depth], and by depth alone [depth].

        That is the share of right ones among all that were reached.
        """
        depths = np.broadcast_to(np.arange(MAX_DRAFT), self.bins.shape)
        judged = (depths <= self.n_right[:, None]) & (depths < self.lengths[:, None])
        right = judged & (depths < self.n_right[:, None])
        n, n_right = np.zeros((N_BINS, MAX_DRAFT)), np.zeros((N_BINS, MAX_DRAFT))
        np.add.at(n, (self.bins[judged], depths[judged]), 1.0)
        np.add.at(n_right, (self.bins[right], depths[right]), 1.0)
        of_all = n_right.sum() / max(n.sum(), 1.0)
        of_bin = (n_right.sum(1) + _OF_ALL * of_all) / (n.sum(1) + _OF_ALL)
        of_depth: Floats = (n_right.sum(0) + _OF_ALL * of_all) / (n.sum(0) + _OF_ALL)
        return (n_right + _OF_BIN * of_bin[:, None]) / (n + _OF_BIN), of_depth

    def chances(self, table: Floats) -> Floats:
        """For each guess [n, depth]: the chance that it and all before it are right."""
        depths = np.arange(MAX_DRAFT)
        there = depths < self.lengths[:, None]
        chances = np.where(there, table[self.bins, depths], 0.0)
        return np.cumprod(chances, axis=1, dtype=np.float64)


def drafted(answers: Sequence[Answer]) -> Guesses:
    """What the model guesses."""
    return Guesses.of(DrafterKind.MODEL, answers, lambda a, at: a.draft(at, len(a.tokens)))


def looked_up(answers: Sequence[Answer]) -> Guesses:
    """What prompt lookup guesses."""
    return Guesses.of(
        DrafterKind.LOOKUP,
        answers,
        lambda a, at: (lookup_guesses(a)[at].n_right, lookup_guesses(a)[at].matches),
    )
