"""The positions of a slot's tokens in the cache: consecutive, except for images in a plane.

An image is kept or removed as a whole.  An image in a plane has fewer positions than tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from specd.engine.media import Media


@dataclass(frozen=True, slots=True)
class _Span:
    """The place of an image.  first: index of its first token, which is at `position`."""

    first: int
    position: int
    media: Media

    @property
    def end(self) -> int:
        return self.first + self.media.n_tokens

    @property
    def end_position(self) -> int:
        """One more than the last position of its cells."""
        plane = self.media.plane
        return self.position + (plane.extent if plane is not None else self.media.n_tokens)

    @property
    def n_saved(self) -> int:
        """Number of its tokens less number of its positions."""
        return self.media.n_tokens - self.media.n_positions


class PositionMap:
    """The images of one slot, and the conversion between token counts and positions."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, first: int, media: Media) -> None:
        """Add an image after all others.  first: index of its first token."""
        self._spans.append(_Span(first, self.position(first), media))

    def truncate(self, n: int) -> None:
        """Remove the images beyond the first n tokens."""
        self._spans = [span for span in self._spans if span.end <= n]

    def position(self, n: int) -> int:
        """Return the position of the token after the first n."""
        return n - sum(span.n_saved for span in self._spans if span.end <= n)

    def without_cut_media(self, n: int) -> int:
        """Return n, or the start of the image that a cut after n tokens would split."""
        return next((span.first for span in self._spans if span.first < n < span.end), n)

    def cache_end(self, n: int) -> int:
        """Return where the cache ends with the first n tokens, which split no image."""
        last = next((span for span in self._spans if span.end == n), None)
        return last.end_position if last is not None else self.position(n)

    def tokens(self, cache_end: int) -> int:
        """Return how many tokens a cache with that end holds, without a partial image."""
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
