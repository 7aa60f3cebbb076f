"""What stands in a prompt in the place of words: embeddings of an image, or of a sound.

In a slot's tokens each run of embeddings is a negative number, repeated; the same content has the
same number, so that prefixes compare as they do for text.
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
    """Positions [4, n_tokens] of an image that begins at position p: origin + p · moves."""

    origin: Positions
    moves: Positions

    def at(self, position: int) -> Positions:
        return self.origin + np.int32(position) * self.moves

    @property
    def extent(self) -> int:
        """What the first of the four takes: the cache knows no other."""
        return int(self.origin[0].max()) + 1


@dataclass(slots=True, eq=False)
class Media:
    """One run of embeddings; a large image may be several.

    n_positions: where the text behind it goes on; fewer than n_tokens for an image in a plane.
    plane: None where each token has the next position.
    is_causal: whether its tokens see only those before them.
    source: what the projector encodes; None afterwards, when `rows` is there.
    encoding: under way or done; the loop's alone.
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
        """[4, n_tokens] in a plane, else [1, n_tokens]."""
        if self.plane is not None:
            return self.plane.at(begin)
        return np.arange(begin, begin + self.n_tokens, dtype=np.int32)[np.newaxis]


#: What a file becomes in a prompt: the model's own words around it, and embeddings.
Part = TokenId | Media


@dataclass(frozen=True, slots=True)
class Prompt:
    """tokens: as a slot holds them.  media: by the index of its first token, in order."""

    tokens: list[TokenId] = field(default_factory=list)
    media: dict[int, Media] = field(default_factory=dict)

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, Media):
                self.media[len(self.tokens)] = part
                self.tokens.extend([part.token] * part.n_tokens)
            else:
                self.tokens.append(part)


class Projector(Protocol):
    """Turns images and sounds into embeddings.  Used by one thread, which is not the loop's."""

    @property
    def width(self) -> int:
        """Numbers per embedding."""
        ...

    @property
    def max_files(self) -> int | None:
        """Files that one prompt may hold; None is any number."""
        ...

    def parts(self, data: bytes, n_ctx: int = 0) -> Sequence[Part]:
        """What a file becomes; InvalidRequest where it is none that the model can be shown.

        n_ctx: tokens of the prompt that it should leave room in; 0 is a whole slot's.  Of other
        sizes are other tokens.
        """
        ...

    def encode(self, media: Media) -> Rows:
        """Raises DecodeFailed."""
        ...
