"""Which bytes of a download are still wanted, in the order of the file.

Parts are large, so that there are few files; connections work on spans of them, small and in order:
no connection is left alone with the slow end of a part, and the bytes that follow each other from
the first can be hashed while later ones arrive.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from specd.registry.partial import Part


@dataclass(slots=True, eq=False)
class Span:
    """Bytes [start, end) that are not on disk yet; `start` moves as they come."""

    start: int
    end: int

    @property
    def done(self) -> bool:
        return self.start == self.end


class Spans:
    """size: of one span, at most.

    completed: bytes that are on disk, in whatever order they came.
    """

    def __init__(self, parts: Iterable[Part], size: int) -> None:
        self._parts = tuple(parts)
        self._wanted = {part.number: deque(_split_part(part, size)) for part in self._parts}
        self.total = sum(part.size for part in self._parts)
        self.completed = sum(part.completed for part in self._parts)

    def __iter__(self) -> Iterator[Span]:
        """The unfinished ones, first to last."""
        for part in self._parts:
            yield from (span for span in self._wanted[part.number] if not span.done)

    def before(self, end: int) -> list[Span]:
        """The unfinished ones that begin before that byte."""
        return list(itertools.takewhile(lambda span: span.start < end, self))

    def advance(self, span: Span, n: int) -> None:
        """The next n bytes of the span are on disk."""
        assert 0 <= n <= span.end - span.start
        span.start += n
        self.completed += n

    @property
    def contiguous_end(self) -> int:
        """All bytes before this one are on disk."""
        return next((span.start for span in self), self.total)

    def parts(self) -> list[Part]:
        """With what is completed of each from its beginning, which is all that their files say."""
        return [replace(part, completed=self._completed(part)) for part in self._parts]

    def _completed(self, part: Part) -> int:
        wanted = self._wanted[part.number]
        while wanted and wanted[0].done:
            wanted.popleft()
        return (wanted[0].start if wanted else part.end) - part.offset


def _split_part(part: Part, size: int) -> Iterator[Span]:
    for start in range(part.offset + part.completed, part.end, size):
        yield Span(start, min(start + size, part.end))
