"""The missing bytes of a download, after any bytes in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specd.registry.partial import Part, Spans


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    found, offset = [], 0
    for number in range(draw(st.integers(0, 5))):
        size = draw(st.integers(1, 60))
        found.append(Part(number, offset, size, draw(st.integers(0, size))))
        offset += size
    return found


@given(parts=parts(), size=st.integers(1, 25), data=st.data())
def test_spans_match_a_model_of_the_missing_bytes(
    parts: list[Part], size: int, data: st.DataObject
) -> None:
    spans = Spans(parts, size)
    total = sum(part.size for part in parts)
    there = {i for part in parts for i in range(part.offset, part.offset + part.completed)}
    while True:
        wanted = [i for span in spans for i in range(span.start, span.end)]
        assert wanted == [i for i in range(total) if i not in there], "in the order of the file"
        assert all(span.end - span.start <= size for span in spans)
        assert spans.completed == len(there)
        assert spans.contiguous_end == next((i for i in range(total) if i not in there), total)
        for part, began in zip(spans.parts(), parts, strict=True):
            end = next((i for i in range(part.offset, part.end) if i not in there), part.end)
            assert part == Part(began.number, began.offset, began.size, end - part.offset)
        if not wanted:
            return
        span = data.draw(st.sampled_from(list(spans)))
        n = data.draw(st.integers(1, span.end - span.start))
        there |= set(range(span.start, span.start + n))
        spans.advance(span, n)
