"""Characters split at any token boundaries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specd.engine.detokenizer import Detokenizer


@given(st.text(), st.data())
def test_characters_split_over_tokens_are_emitted_whole(text: str, data: st.DataObject) -> None:
    encoded = text.encode("utf-8", "replace")
    detokenizer = Detokenizer()
    shown, at = "", 0
    while at < len(encoded):
        n = data.draw(st.integers(1, 5))
        shown += detokenizer.feed(encoded[at : at + n])
        assert "\ufffd" not in shown or "\ufffd" in text
        at += n
    assert shown + detokenizer.flush() == encoded.decode()


def test_an_incomplete_character_at_the_end_becomes_one_replacement_character() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed("é".encode()[:1]) == ""
    assert detokenizer.flush() == "\ufffd"
