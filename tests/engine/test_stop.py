"""Stop strings split at any token boundaries."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from specd.engine.detokenizer import StopFilter

texts = st.text(alphabet="abc\n", max_size=40)
stops = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=4), max_size=3).map(tuple)


def cut(text: str, data: st.DataObject) -> list[str]:
    points = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    ends = [0, *points, len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


@given(texts, stops, st.data())
def test_text_does_not_depend_on_how_the_stream_is_split(
    text: str, stop: tuple[str, ...], data: st.DataObject
) -> None:
    filtered = StopFilter(stop)
    shown = ""
    for piece in cut(text, data):
        shown += filtered.feed(piece)
        assert not any(s in shown for s in stop)
    shown += filtered.flush()
    if filtered.stopped:
        assert any(text.startswith(shown + s) for s in stop)
    else:
        assert shown == text
        assert not any(s in text for s in stop)


def test_only_possible_stop_strings_are_held_back() -> None:
    filtered = StopFilter(("END",))
    assert filtered.feed("the E") == "the "
    assert filtered.feed("vening") == "Evening"
    assert filtered.feed("EN") == ""
    assert filtered.feed("D and more") == ""
    assert filtered.stopped
    assert filtered.feed("more") == ""
