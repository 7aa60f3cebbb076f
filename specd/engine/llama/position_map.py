"""Where a slot's tokens lie in the cache: one after the other, but for images in a plane.

An image is kept or lost whole; one in a plane takes fewer positions than it has tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from specd.engine.media import Media


@dataclass(frozen=True, slots=True)
class _Span:
    """first: index of its first token, which is at `position`."""

    first: int
    position: int
    media: Media

    @property
    def end(self) -> int:
        return self.first + self.media.n_tokens

    @property
    def end_position(self) -> int:
        """One more than the last position that the cache holds of it."""
        plane = self.media.plane
        return self.position + (plane.extent if plane is not None else self.media.n_tokens)

    @property
    def n_saved(self) -> int:
        """Positions that it takes less than it has tokens."""
        return self.media.n_tokens - self.media.n_positions


class PositionMap:
    """Of one slot."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, first: int, media: Media) -> None:
        """Behind all that is there."""
        self._spans.append(_Span(first, self.position(first), media))

    def truncate(self, n: int) -> None:
        """Only the first n tokens are left."""
        self._spans = [span for span in self._spans if span.end <= n]

    def position(self, n: int) -> int:
        """That of the token behind the first n."""
        return n - sum(span.n_saved for span in self._spans if span.end <= n)

    def without_cut_media(self, n: int) -> int:
        """The first n tokens, or as many fewer as no image is cut in two."""
        return next((span.first for span in self._spans if span.first < n < span.end), n)

    def cache_end(self, n: int) -> int:
        """Where the cache ends with the first n tokens, which cut no image."""
        last = next((span for span in self._spans if span.end == n), None)
        return last.end_position if last is not None else self.position(n)

    def tokens(self, cache_end: int) -> int:
        """How many tokens, and no part of an image, a cache holds that ends there."""
        n = cache_end
        n_saved = 0
        for span in self._spans:
            if span.position >= cache_end:
                break
            if span.end_position > cache_end:
                return span.first
            n_saved += span.n_saved
            n = max(cache_end + n_saved, span.end)
        return n
