"""Calls next to content: indexes, ids, surrounding space, and any split of the text."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.prompt.tools import ToolParser, Tools, formats, random_call_id
from tests.prompt.tools.splits import TOOLS, Answer, cut, ids, parse, parsed

A, B = '<tool_call>{"name": "a"}</tool_call>', '<tool_call>{"name": "b"}</tool_call>'
TEMPLATES = (
    "<tool_call><function=<arg_key>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "<｜tool▁calls▁begin｜>",
    "<start_function_call><|tool_call>",
    "<|tool_call_start|><function_calls>",
)


def parser(template: str = "<tool_call>", *, tag: str | None = None) -> ToolParser:
    return ToolParser(formats(template, tag=tag), Tools(TOOLS), new_id=ids())


def read(text: str, template: str = "<tool_call>") -> Answer:
    return parsed(lambda: parser(template), text, n_cuts=2 if len(text) < 90 else 1)


@pytest.mark.parametrize(
    "text,content",
    [
        # Space next to calls is dropped, except between two texts, which it separates.
        (f" \n{A}\n ", ""),
        (f"x \n{A}\n ", "x"),
        (f"x {A}\n\ny", "x y"),
        (f"x{A}\n\ny", "x\n\ny"),
        (f"x{A}y", "xy"),
        (f"\n{A}\n\ny ", "y "),
        (f"x\n{A} {B}\n\n\ny", "x\ny"),
        # Without calls, nothing is dropped.
        (" \n x \n ", " \n x \n "),
        ("\n <tool_call> \n", "\n <tool_call> \n"),
        (" \n", " \n"),
    ],
)
def test_space_next_to_calls_is_dropped(text: str, content: str) -> None:
    assert read(text).content == content


def test_calls_have_indexes_and_ids_in_order() -> None:
    answer = read(f"{A}x{B}{A}")
    assert [(call.name, call.index, call.id) for call in answer.calls] == [
        ("a", 0, "call_00000001"),
        ("b", 1, "call_00000002"),
        ("a", 2, "call_00000003"),
    ]


def test_an_id_that_the_model_wrote_is_used_once() -> None:
    twice = json.dumps([{"name": "a", "id": "abcdefghi"}] * 2)
    answer = read(f"[TOOL_CALLS]{twice}", "[TOOL_CALLS]")
    assert [call.id for call in answer.calls] == ["abcdefghi", "call_00000001"]


def test_ids_look_like_ollamas() -> None:
    made = {random_call_id() for _ in range(50)}
    assert len(made) == 50
    assert all(re.fullmatch("call_[a-z0-9]{8}", call_id) for call_id in made)


def test_a_call_is_emitted_as_soon_as_it_is_complete() -> None:
    reader = parser()
    assert reader.feed("Hi <tool_").content == "Hi"
    assert reader.feed('call>{"name": "a"}').tool_calls == ()
    (call,) = reader.feed("</tool_call>").tool_calls
    assert call.name == "a"
    assert reader.feed("\nand more").content == " and more"


def test_an_answer_in_json_is_streamed() -> None:
    reader = parser("<|python_tag|>")
    assert reader.feed('{"').content == ""
    assert reader.feed('city": ').content == '{"city":'
    reader = parser("<|python_tag|>")
    assert reader.feed('{"name": "get_w').content == ""
    assert reader.feed("ind").content == '{"name": "get_wind'
    # An incomplete key or name decides already.
    assert parser("<|python_tag|>").feed('{"ci').content == '{"ci'
    assert parser("<|python_tag|>").feed('{"name": "Bo').content == '{"name": "Bo'


def test_text_is_emitted_until_a_call_may_begin() -> None:
    reader = parser()
    assert reader.feed("a < b").content == "a < b"
    assert reader.feed(" <").content == ""
    assert reader.feed("tool").content == ""
    assert reader.feed("box>").content == " <toolbox>"


def test_unpaired_surrogates_are_replaced() -> None:
    (call,) = read(
        '<tool_call>{"name": "a", "arguments": {"x\\ud83d": ["\\udE00", "\\ud83d\\ude00"]}}'
    ).calls
    assert call.arguments == {"x\ufffd": ["\ufffd", "😀"]}
    json.dumps(dict(call.arguments), ensure_ascii=False).encode()


def test_deep_and_endless_json_is_content() -> None:
    for text in ('<tool_call>{"x":' + "[" * 20_000, "<tool_call>" + "[" * 20_000 + "]" * 20_000):
        assert parse(parser(), [text]) == Answer(content=text)


def test_line_ends_inside_strings_are_accepted() -> None:
    assert read('<tool_call>{"name": "a", "arguments": {"code": "x\n\ty"}}').called == [
        ("a", {"code": "x\n\ty"})
    ]


def test_trailing_calls_of_unclosed_thinking_are_found() -> None:
    def trailing_calls(text: str) -> list[tuple[str, int]]:
        return [(call.name, call.index) for call in parser().trailing_calls(text)]

    assert trailing_calls(f"I could {A}, or rather {B} {A}\n") == [("b", 0), ("a", 1)]
    assert trailing_calls(f"I could {A}, or not") == []
    assert trailing_calls("no") == []


SIGNS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=now>", "</function>", "<parameter=x>"),
        *("</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        *(
            "[TOOL_CALLS]",
            "[ARGS]",
            "now",
            '{"name": "now"}',
            '{"name":',
            '"now"',
            ', "arguments":',
        ),
        *("{", "}", "[", "]", '"', "\\", ":", ",", ";", " ", "\n", "a", "é", "日", "<", "</"),
        *(
            "<|python_tag|>",
            "<|tool_call>call:now{",
            "<tool_call|>",
            '<|"|>',
            "<|tool_call_start|>",
        ),
        *("<|tool_call_end|>", "[now()]", "now(", ")", ")]", "'", "<function_calls>"),
        *(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
        ),
        *("<start_function_call>call:now{", "<end_function_call>", "<escape>", "```json\n", "```"),
    ]
)
TEXTS = st.lists(SIGNS, max_size=14).map("".join)


@given(
    text=TEXTS,
    template=st.sampled_from(TEMPLATES),
    tag=st.sampled_from([None, "{", "[", "<tool_call>", "now"]),
    cuts=st.lists(st.integers(0, 120), max_size=6),
)
def test_any_split_of_any_text_parses_the_same_and_loses_no_content(
    text: str, template: str, tag: str | None, cuts: list[int]
) -> None:
    whole = parse(parser(template, tag=tag), [text])
    assert parse(parser(template, tag=tag), cut(text, cuts)) == whole
    assert parse(parser(template, tag=tag), list(text)) == whole
    if not whole.calls:
        assert whole.content == text


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    calls=st.lists(st.dictionaries(st.text(), VALUES, max_size=4), min_size=1, max_size=3),
    form=st.sampled_from(
        ['<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>', "[TOOL_CALLS]f[ARGS]%s"]
    ),
    cuts=st.lists(st.integers(0, 300), max_size=5),
)
def test_arguments_keep_their_values_and_order(
    calls: list[dict[str, object]], form: str, cuts: list[int]
) -> None:
    text = "\n".join(form % json.dumps(arguments) for arguments in calls)
    answer = parse(parser("<tool_call>[TOOL_CALLS]"), cut(text, cuts))
    assert [json.dumps(dict(call.arguments)) for call in answer.calls] == [
        json.dumps(arguments) for arguments in calls
    ]
    assert answer.content == ""
