"""Compute the drafts of the model and of prompt lookup at every position of some answers, as
arrays.
"""

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

#: Weights of the priors for one bin at one depth: the bin's probability at any depth, and that of
#: all bins.
_OF_BIN, _OF_ALL = 8.0, 2.0
N_BINS = max(map(len, EDGES.values())) + 1


@dataclass(frozen=True, slots=True)
class LookupGuess:
    """The tokens that prompt lookup finds at a position, and how many of them are right."""

    n_right: int
    matches: Sequence[float]


def lookup_guesses(answer: Answer) -> Sequence[LookupGuess]:
    """Return the guess at each position; there is none before the first token of the answer."""
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
    """One drafter at every position: lengths and right guesses [n], bins [n, depth]."""

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
        """Return the guesses.  draft: answer and position → right guesses, and the confidences of
        all.
        """
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
        """Return the probability of a right guess [bin, depth], and by depth alone [depth].

        This is the share of right guesses among all that were reached.
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
        """Return [n, depth]: the probability that a guess and all before it are right."""
        depths = np.arange(MAX_DRAFT)
        there = depths < self.lengths[:, None]
        chances = np.where(there, table[self.bins, depths], 0.0)
        return np.cumprod(chances, axis=1, dtype=np.float64)


def drafted(answers: Sequence[Answer]) -> Guesses:
    """Return the model's guesses."""
    return Guesses.of(DrafterKind.MODEL, answers, lambda a, at: a.draft(at, len(a.tokens)))


def looked_up(answers: Sequence[Answer]) -> Guesses:
    """Return the guesses of prompt lookup."""
    return Guesses.of(
        DrafterKind.LOOKUP,
        answers,
        lambda a, at: (lookup_guesses(a)[at].n_right, lookup_guesses(a)[at].matches),
    )
