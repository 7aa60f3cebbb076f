"""Store the drafter's guesses at every position of a target's own answers in a file.

Whether a guess is right depends only on the true text before it.  A draft from any position
therefore has two parts: the guesses along the true text up to the first wrong one, and the
drafter's guesses after that error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specd.core import TokenId
from specd.engine.sampler import CERTAIN
from specd.engine.speculative.controller import MAX_DRAFT
from specd.errors import StoreError

#: Raise it when files of the earlier version cannot be read any more.
FORMAT = 1
#: Margins are stored in thousandths, rounded down, as are the edges of the controller's bins.
_SCALE = 1000
_MOST = 65535

Codes = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Answer:
    """One answer of the target, and the drafter's guess at each of its positions.

    Answers compare by identity, so that an answer can be a key.

    kind: the workload of its prompt.  prompt, tokens: ids, without an end of generation.
    right, margins: of the guess after the true tokens before each position; the first position has
    none, because the prompt's pass gives its token.
    second_right: for a wrong guess, whether the drafter's second best was right.
    after_error: margins of the guesses after a wrong one, at most MAX_DRAFT − 1; fewer if the
    drafter ended its draft, none if the guess is right.
    """

    kind: str
    temperature: float
    seed: int
    prompt: Sequence[TokenId]
    tokens: Sequence[TokenId]
    right: Sequence[bool]
    margins: Sequence[float]
    second_right: Sequence[bool]
    after_error: Sequence[Sequence[float]]

    def n_right(self, position: int, end: int) -> int:
        """Return the consecutive right guesses from the position on; `end` is after the last
        position.
        """
        n = 0
        while position + n < end and n < MAX_DRAFT and self.right[position + n]:
            n += 1
        return n

    def n_drafted(self, position: int) -> tuple[int, int]:
        """Return the right guesses and all guesses of the longest draft from the position on."""
        n, n_right = len(self.tokens), self.n_right(position, len(self.tokens))
        error = position + n_right
        if error == n or n_right == MAX_DRAFT:
            return n_right, n_right
        return n_right, min(n_right + 1 + len(self.after_error[error]), MAX_DRAFT)

    def draft(self, position: int, end: int) -> tuple[int, list[float]]:
        """Return the right guesses of the longest draft from the position on, and all its margins.

        end: tokens of the answer, the last of which ends it; a draft ends there too.
        """
        n_right = self.n_right(position, end)
        if position + n_right == end or n_right == MAX_DRAFT:
            return n_right, list(self.margins[position : position + n_right])
        error = position + n_right
        margins = [*self.margins[position : error + 1], *self.after_error[error]]
        return n_right, margins[:MAX_DRAFT]


@dataclass(frozen=True)
class Trace:
    """The recording of one pair.  provenance: files, versions and settings."""

    name: str
    provenance: Mapping[str, Any]
    answers: Sequence[Answer]

    @cached_property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(sorted({answer.temperature for answer in self.answers}))

    def at(self, temperature: float) -> tuple[Answer, ...]:
        return tuple(a for a in self.answers if a.temperature == temperature)

    def first_right(self, temperature: float) -> float:
        """Return the share of right guesses along the true text."""
        right = [r for answer in self.at(temperature) for r in answer.right[1:]]
        return sum(right) / len(right)

    def second_right(self, temperature: float) -> float:
        """Return the share of wrong guesses along the true text whose second best is right."""
        found = [
            second
            for answer in self.at(temperature)
            for right, second in zip(answer.right[1:], answer.second_right[1:], strict=True)
            if not right
        ]
        return sum(found) / max(len(found), 1)

    def save(self, path: Path) -> None:
        """Write a compressed file of that name; the same trace always gives the same bytes.

        Raises StoreError if it cannot be written.
        """
        answers = self.answers
        about = {
            "format": FORMAT,
            "name": self.name,
            "provenance": dict(self.provenance),
            "answers": [
                [a.kind, a.temperature, a.seed, len(a.prompt), len(a.tokens)] for a in answers
            ],
        }
        after = [margins for a in answers for margins in a.after_error]
        flags = [r + 2 * s for a in answers for r, s in zip(a.right, a.second_right, strict=True)]
        tokens = [token for a in answers for token in (*a.prompt, *a.tokens)]
        try:
            with path.open("wb") as file:
                np.savez_compressed(
                    file,
                    about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
                    tokens=np.array(tokens, dtype=np.int32),
                    flags=np.array(flags, dtype=np.uint8),
                    margins=_encode([m for a in answers for m in a.margins]),
                    n_after=np.array([len(margins) for margins in after], dtype=np.uint8),
                    after=_encode([m for margins in after for m in margins]),
                )
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> Trace:
    """Return a trace.  Raises StoreError for a file of another version."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(arrays["about"].tobytes())
        found = about["format"]
    except (OSError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} is no trace of a drafter's guesses: {error}") from error
    if found != FORMAT:
        raise StoreError(f"{path} has format {found}, not {FORMAT}: record it again")
    return Trace(about["name"], about["provenance"], tuple(_answers(about["answers"], arrays)))


def _answers(rows: Sequence[Any], arrays: Mapping[str, Any]) -> Iterator[Answer]:
    tokens, flags = arrays["tokens"].tolist(), arrays["flags"].tolist()
    margins, after = _decode(arrays["margins"]), _decode(arrays["after"])
    ends = np.cumsum(arrays["n_after"], dtype=np.int64).tolist()
    at_token = at = 0
    for kind, temperature, seed, n_prompt, n_tokens in rows:
        whole = tokens[at_token : at_token + n_prompt + n_tokens]
        at_token += len(whole)
        mine = flags[at : at + n_tokens]
        bounds = [ends[at - 1] if at else 0, *ends[at : at + n_tokens]]
        yield Answer(
            kind=kind,
            temperature=temperature,
            seed=seed,
            prompt=whole[:n_prompt],
            tokens=whole[n_prompt:],
            right=[bool(flag & 1) for flag in mine],
            margins=margins[at : at + n_tokens],
            second_right=[bool(flag & 2) for flag in mine],
            after_error=[after[a:b] for a, b in pairwise(bounds)],
        )
        at += n_tokens


def _encode(margins: Sequence[float]) -> Codes:
    """Return the largest codes with margins no larger than these; decoded margins encode to
    themselves.
    """
    exact = np.array(margins, dtype=np.float64)
    scaled = np.floor(exact * _SCALE)
    scaled += (scaled + 1.0) / _SCALE <= exact
    return np.minimum(scaled, _MOST).astype(np.uint16)


def _decode(codes: Codes) -> list[float]:
    return [CERTAIN if code == _MOST else code / _SCALE for code in codes.tolist()]
