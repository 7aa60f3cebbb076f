"""Thinking is separated from the answer, for any split of the stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.prompt.reasoning import ReasoningParser


def parse(pieces: list[str], *, starts_thinking: bool = False) -> tuple[str, str]:
    """(thinking, content) of all pieces."""
    parser = ReasoningParser(starts_thinking=starts_thinking)
    deltas = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    return "".join(d.thinking for d in deltas), "".join(d.content for d in deltas)


@pytest.mark.contract("templates.thinking-parsed")
def test_tags_and_the_space_around_them_are_dropped() -> None:
    assert parse(["  <think>\n why\n</think>\n\n because "]) == ("why\n", "because ")


def test_an_answer_without_thinking_keeps_its_leading_space() -> None:
    assert parse(["  plain <think>x</think>"]) == ("", "  plain <think>x</think>")


@pytest.mark.contract("templates.thinking-parsed")
def test_a_prompt_that_opened_the_tag_starts_inside() -> None:
    parser = ReasoningParser.after("<|assistant|>\n<think>\n")
    delta = parser.feed("hm</think>yes")
    assert (delta.thinking, delta.content) == ("hm", "yes")
    assert ReasoningParser.after("<think>\n\n</think>\n\n").feed("yes").content == "yes"


def test_thinking_that_never_ends_is_thinking() -> None:
    assert parse(["<think>and then </thi"]) == ("and then </thi", "")


@pytest.mark.contract("templates.thinking-parsed")
def test_the_beginning_of_a_tag_alone_is_content() -> None:
    assert parse([" <thi"]) == ("", " <thi")


def test_only_the_first_close_tag_counts() -> None:
    assert parse(["<think>a</think>b</think>"]) == ("a", "b</think>")


def test_text_is_emitted_before_the_end_is_known() -> None:
    parser = ReasoningParser()
    assert parser.feed("<think>one ").thinking == "one "
    assert parser.feed("two</t").thinking == "two"
    assert parser.feed("h").thinking == ""
    assert parser.feed("is").thinking == "</this"


def test_the_model_may_repeat_the_open_tag_of_the_prompt() -> None:
    assert parse(["\n<think>\nhm</think>yes"], starts_thinking=True) == ("hm", "yes")
    assert parse(["<thin"], starts_thinking=True) == ("<thin", "")
    assert parse([" \n<thin"], starts_thinking=True) == ("<thin", "")


TEXTS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<", "</", "<thi", "think>", " ", "\n", "a", "é", "日"]
    ),
    max_size=12,
).map("".join)


@pytest.mark.contract("templates.thinking-parsed")
@given(text=TEXTS, cuts=st.lists(st.integers(0, 60), max_size=6), inside=st.booleans())
def test_any_split_parses_the_same(text: str, cuts: list[int], inside: bool) -> None:
    at = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(at)]
    whole = parse([text], starts_thinking=inside)
    assert parse(pieces, starts_thinking=inside) == whole
    assert parse(list(text), starts_thinking=inside) == whole


@given(text=TEXTS)
def test_every_two_way_split_parses_the_same(text: str) -> None:
    whole = parse([text])
    for cut in range(len(text) + 1):
        assert parse([text[:cut], text[cut:]]) == whole


@given(thinking=st.text(), content=st.text())
def test_written_thinking_is_parsed_back(thinking: str, content: str) -> None:
    thinking = thinking.replace("</think>", "").lstrip()
    content = content.lstrip()
    if (thinking + "</think>").find("</think>") != len(thinking) or not thinking:
        return
    assert parse([f"<think>{thinking}</think>{content}"]) == (thinking, content)
