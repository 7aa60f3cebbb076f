"""The byte ranges of a download that are still missing, in file order.

Parts are large, to have few state files.  Connections fetch small spans of them in order, so that
no connection is left with the slow end of a part, and the first bytes can be hashed early.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from specd.registry.partial import Part


@dataclass(slots=True, eq=False)
class Span:
    """Missing bytes [start, end); `start` advances as they arrive."""

    start: int
    end: int

    @property
    def done(self) -> bool:
        return self.start == self.end


class Spans:
    """All missing spans of a download.

    size: maximum bytes of one span.  completed: bytes on disk, in any order.
    """

    def __init__(self, parts: Iterable[Part], size: int) -> None:
        self._parts = tuple(parts)
        self._wanted = {part.number: deque(_split_part(part, size)) for part in self._parts}
        self.total = sum(part.size for part in self._parts)
        self.completed = sum(part.completed for part in self._parts)

    def __iter__(self) -> Iterator[Span]:
        """Yield the unfinished spans, first to last."""
        for part in self._parts:
            yield from (span for span in self._wanted[part.number] if not span.done)

    def before(self, end: int) -> list[Span]:
        """Return the unfinished spans that begin before that byte."""
        return list(itertools.takewhile(lambda span: span.start < end, self))

    def advance(self, span: Span, n: int) -> None:
        """Record that the next n bytes of the span are on disk."""
        assert 0 <= n <= span.end - span.start
        span.start += n
        self.completed += n

    @property
    def contiguous_end(self) -> int:
        """The first missing byte: all bytes before it are on disk."""
        return next((span.start for span in self), self.total)

    def parts(self) -> list[Part]:
        """Return the parts with the bytes completed from each part's start, as Ollama saves it."""
        return [replace(part, completed=self._completed(part)) for part in self._parts]

    def _completed(self, part: Part) -> int:
        wanted = self._wanted[part.number]
        while wanted and wanted[0].done:
            wanted.popleft()
        return (wanted[0].start if wanted else part.end) - part.offset


def _split_part(part: Part, size: int) -> Iterator[Span]:
    for start in range(part.offset + part.completed, part.end, size):
        yield Span(start, min(start + size, part.end))
