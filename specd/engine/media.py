"""Embeddings of images and sounds in a prompt.

Among a slot's tokens, each run of embeddings is one negative number, repeated.  Equal content has
an equal number, so prefixes compare as they do for text.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specd.core import TokenId

#: Embeddings [n_tokens, width].
Rows = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Plane:
    """Positions [4, n_tokens] of an image that starts at position p: origin + p · moves."""

    origin: Positions
    moves: Positions

    def at(self, position: int) -> Positions:
        """Return the positions of an image that starts at `position`."""
        return self.origin + np.int32(position) * self.moves

    @property
    def extent(self) -> int:
        """Number of positions that the image takes in the first of the four dimensions.

        The cache uses only that dimension.
        """
        return int(self.origin[0].max()) + 1


@dataclass(slots=True, eq=False)
class Media:
    """One run of embeddings; a large image may have several.

    n_positions: positions that the run takes; fewer than n_tokens for an image in a plane.
    plane: None if each token has the next position.
    is_causal: whether its tokens attend only to those before them.
    source: input of the projector; None once `rows` is set.
    encoding: the running or finished work; only the loop uses it.
    """

    token: TokenId
    n_tokens: int
    n_positions: int
    plane: Plane | None = None
    is_causal: bool = True
    source: object = None
    rows: Rows | None = None
    encoding: Future[None] | None = None

    def positions(self, begin: int) -> Positions:
        """Return the positions of the tokens: [4, n_tokens] in a plane, else [1, n_tokens]."""
        if self.plane is not None:
            return self.plane.at(begin)
        return np.arange(begin, begin + self.n_tokens, dtype=np.int32)[np.newaxis]


#: A part of a file in a prompt: a token that the model puts around it, or embeddings.
Part = TokenId | Media


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt.  tokens: as a slot holds them.  media: by index of its first token, in order."""

    tokens: list[TokenId] = field(default_factory=list)
    media: dict[int, Media] = field(default_factory=dict)

    def add(self, parts: Sequence[Part]) -> None:
        """Append parts to the prompt."""
        for part in parts:
            if isinstance(part, Media):
                self.media[len(self.tokens)] = part
                self.tokens.extend([part.token] * part.n_tokens)
            else:
                self.tokens.append(part)


class Projector(Protocol):
    """The projector of a model: turns images and sounds into embeddings.

    Only one thread uses it, which is not the loop's.
    """

    @property
    def width(self) -> int:
        """Numbers per embedding."""
        ...

    @property
    def max_files(self) -> int | None:
        """Most files in one prompt; None: any number."""
        ...

    def parts(self, data: bytes, n_ctx: int = 0) -> Sequence[Part]:
        """Return the parts of a file.  Raises InvalidRequest if the model cannot read it.

        n_ctx: context of the prompt in tokens, in which the file should leave room; 0: a slot's.
        The parts depend on it.
        """
        ...

    def encode(self, media: Media) -> Rows:
        """Return the embeddings of a run.  Raises DecodeFailed."""
        ...
