"""A hostile answer takes work in proportion to its length; no part is read many times.

Work is counted, not timed: the signs that readers say they went through, and every call of a
function that parsing takes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from specd.prompt.tools import ToolParser, Tools, formats
from specd.prompt.tools.parser import MAX_CALL, MAX_FAILED_WORK, MAX_WORK
from specd.prompt.tools.text_stream import TextStream
from tests.fast import is_fast
from tests.prompt.tools.splits import TOOLS, parse

#: The marks of a family's template, and the text that the answer repeats.
HOSTILE = {
    "mistral": ("[TOOL_CALLS]", "[TOOL_CALLS][{"),
    "hermes": ("<tool_call>", '<tool_call>{"a":"'),
    "coder": ("<function=", "<function=f><parameter=a>"),
    "glm": ("<arg_key>", "<tool_call>f<arg_key>a"),
    "deepseek": ("tool▁call▁begin", '<｜tool▁call▁begin｜>a<｜tool▁sep｜>{"a":"'),
    "gemma": ("<|tool_call>", '<|tool_call>call:a{b:1,c:<|"|>'),
    "olmo": ("<function_calls>", "<function_calls>f(a=1)\n("),
    "python": ("<|python_start|>", "[now(a=')]'),"),
    "python_tag": ("<|python_tag|>", '<|python_tag|>{"name":"now"}[{"name":"now","a":"'),
    # After a Go template's tag: a call, then text that may be another call until the end.
    "tag": ("", "do now{} now{ "),
    "brackets": ("<|python_tag|>", "["),
    "no calls": ("<tool_call><arg_key>", "<tool_call>!"),
    "calls": ("<tool_call>", '<tool_call>{"name":"now"}</tool_call>'),
}


class Counter:
    """signs: characters that the readers read.  calls: function calls, including built-in ones."""

    def __init__(self) -> None:
        self.signs = self.calls = 0

    def see(self, _: object, event: str, __: object) -> None:
        self.calls += event in {"call", "c_call"}


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    found, spend = Counter(), TextStream.spend

    def counted(source: TextStream, n_signs: int) -> None:
        found.signs += n_signs
        spend(source, n_signs)

    monkeypatch.setattr(TextStream, "spend", counted)
    before = sys.getprofile()
    yield found
    sys.setprofile(before)


def parser(template: str) -> ToolParser:
    return ToolParser(formats(template, tag=None if template else "do"), Tools(TOOLS))


def work(counter: Counter, template: str, pieces: list[str]) -> int:
    reader = parser(template)
    counter.signs = counter.calls = 0
    sys.setprofile(counter.see)
    try:
        parse(reader, pieces)
    finally:
        sys.setprofile(None)
    return counter.calls


@pytest.mark.parametrize("family", HOSTILE)
def test_work_grows_no_faster_than_the_answer(family: str, counter: Counter) -> None:
    template, unit = HOSTILE[family]
    spent = []
    for size in (2_000, 4_000) if is_fast() else (4_000, 8_000, 16_000):
        text = unit * (size // len(unit))
        spent.append(work(counter, template, [text]))
        assert counter.signs <= len(text) + MAX_FAILED_WORK + MAX_WORK
        # In pieces of tokens, the work is the same, plus a few calls per piece.
        by_piece = work(counter, template, [text[i : i + 4] for i in range(0, size, 4)])
        assert by_piece <= spent[-1] + 30 * size
        assert counter.signs <= len(text) + MAX_FAILED_WORK + MAX_WORK
    assert all(b < 3 * a for a, b in pairwise(spent))


@pytest.mark.parametrize(
    "beginning", ['{"', '{"name": "now', '{"name": "', '{   "', "[[[[{ ", '{"arguments": "']
)
def test_a_long_json_answer_takes_linear_work(beginning: str, counter: Counter) -> None:
    text = beginning + "a" * 8_000
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    assert work(counter, "<|python_tag|>", pieces) < 60 * len(pieces)
    assert counter.signs < 3 * len(text)


def test_the_number_of_tried_ends_is_limited(counter: Counter) -> None:
    text = '[now(a="' + (")]" + "x" * (MAX_CALL // 20)) * 19 + '")]'
    assert parse(parser("<|python_start|>"), [text]).content == text
    assert counter.signs <= len(text) + MAX_FAILED_WORK + MAX_WORK
    short = '[now(a="' + (")]" + "x" * 20) * 15 + '")]'
    assert parse(parser("<|python_start|>"), [short]).names == ["now"]


def call(n_signs: int) -> str:
    text = '<tool_call>{"name": "now", "arguments": {"x": ""}}</tool_call>'
    return text.replace('""', '"' + "x" * (n_signs - len(text)) + '"')


def test_a_call_above_the_maximum_length_is_content() -> None:
    assert parse(parser("<tool_call>"), [call(MAX_CALL)]).names == ["now"]
    text = call(MAX_CALL + 20)
    for pieces in ([text], [text[:-30], text[-30:]], [text[:9], text[9:-12], text[-12:]]):
        assert parse(parser("<tool_call>"), pieces).content == text


def test_too_many_failed_attempts_end_the_parsing_of_calls() -> None:
    some, many = "<tool_call>! " * 1000, "<tool_call>! " * 5000
    assert parse(parser("<tool_call>"), [some, call(80)]).names == ["now"]
    answer = parse(parser("<tool_call>"), [many, call(80)])
    assert answer.content == many + call(80)
    assert parse(parser("<tool_call>"), [many[:7], many[7:] + call(80)]) == answer


def test_the_number_of_valid_calls_is_not_limited() -> None:
    text = call(MAX_FAILED_WORK // 4) * 6
    assert parse(parser("<tool_call>"), [text]).names == ["now"] * 6
