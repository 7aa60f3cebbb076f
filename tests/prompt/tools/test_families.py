"""Calls of each family, parsed from every split."""

from __future__ import annotations

from typing import Any

import pytest

from specd.prompt.tools import ToolParser, Tools, formats
from tests.prompt.tools.splits import TOOLS, Answer, ids, parse, parsed

Called = list[tuple[str, dict[str, Any]]]


def read(template: str, text: str, *, n_cuts: int = 2, **fields: Any) -> Answer:
    forms = formats(template, **fields)
    return parsed(lambda: ToolParser(forms, Tools(TOOLS), new_id=ids()), text, n_cuts=n_cuts)


HERMES, CODER, GLM = "<tool_call>", "<tool_call><function=", "<tool_call><arg_key>"
LLAMA, MISTRAL, DEEPSEEK = "<|start_header_id|>", "[TOOL_CALLS]", "<｜tool▁calls▁begin｜>"

CASES: list[tuple[str, str, str, Called]] = [
    # Hermes, Qwen
    (
        HERMES,
        'Hi.\n<tool_call>\n{"name": "now", "arguments": {"z": "}\\"{", "a": [1]}}\n</tool_call>',
        "Hi.",
        [("now", {"z": '}"{', "a": [1]})],
    ),
    (
        HERMES,
        '<tool_call>{"name":"a","arguments":{}}</tool_call>\n<tool_call>{"name":"b"}</tool_call>\n',
        "",
        [("a", {}), ("b", {})],
    ),
    (
        HERMES,
        '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>',
        "",
        [("a", {"x": 1})],
    ),
    (HERMES, '<tool_call>[{"name":"a"},{"name":"b","arguments":null}]', "", [("a", {}), ("b", {})]),
    (HERMES, '<tool_call>{"name":"a"}\n{"name":"b"}</tool_call>', "", [("a", {}), ("b", {})]),
    (HERMES, '<tool_call>{"name":"a"}}\n</tool_call> ok', "ok", [("a", {})]),
    (
        HERMES,
        '<tool_call>{"name":"a","arguments":{"s":"</tool_call>"}}</tool_call>',
        "",
        [("a", {"s": "</tool_call>"})],
    ),
    (HERMES, '{"name": "now", "arguments": {}}', "", [("now", {})]),
    # Llama 3
    (
        LLAMA,
        ' {"name": "get_weather", "parameters": {"city": "ß", "days": 2}}',
        "",
        [("get_weather", {"city": "ß", "days": 2})],
    ),
    (
        LLAMA,
        '{"name":"now","parameters":{}}; {"type":"function","name":"now"}',
        "",
        [("now", {}), ("now", {})],
    ),
    (LLAMA, '[{"function":{"name":"now","arguments":"{}"}}]', "", [("now", {})]),
    (LLAMA, '<|python_tag|>{"name":"f","parameters":{"a":1}}', "", [("f", {"a": 1})]),
    (
        LLAMA,
        '[now(), get_weather(city="x)]", days=-3)]',
        "",
        [("now", {}), ("get_weather", {"city": "x)]", "days": -3})],
    ),
    # Mistral
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}}, {"name": "b"}]',
        "",
        [("a", {"x": 1}), ("b", {})],
    ),
    (
        MISTRAL,
        'Ja.[TOOL_CALLS]a[ARGS]{"x": "]"}[TOOL_CALLS]b[ARGS]{}',
        "Ja.",
        [("a", {"x": "]"}), ("b", {})],
    ),
    (MISTRAL, '[TOOL_CALLS]a[CALL_ID]123456789[ARGS]{"x": 1}', "", [("a", {"x": 1})]),
    (MISTRAL, '[TOOL_CALLS]a{"x": 1}', "", [("a", {"x": 1})]),
    (MISTRAL, '[{"name": "now", "arguments": {}}]', "", [("now", {})]),
    # Qwen3-Coder, Seed
    (
        CODER,
        (
            "So:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nA\n B\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
        ),
        "So:",
        [("get_weather", {"city": "A\n B", "days": 3})],
    ),
    (CODER, "<function=now>\n</function>\n</tool_call>", "", [("now", {})]),
    (
        CODER,
        "<function=f><parameter=x>1</parameter></function><function=now></function>",
        "",
        [("f", {"x": 1}), ("now", {})],
    ),
    (CODER, '<tool_call>{"name":"a"}</tool_call>', "", [("a", {})]),
    (
        "<seed:tool_call>",
        "<seed:tool_call><function=f></function></seed:tool_call>",
        "",
        [("f", {})],
    ),
    (
        CODER,
        "<function=get_weather><parameter=city>\n\nA\n\n</parameter></function>",
        "",
        [("get_weather", {"city": "\nA\n"})],
    ),
    # GLM
    (
        GLM,
        "<tool_call>get_weather<arg_key> city </arg_key><arg_value>2</arg_value></tool_call>",
        "",
        [("get_weather", {"city": "2"})],
    ),
    (
        GLM,
        (
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rom\n</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
        ),
        "",
        [("get_weather", {"city": "Rom\n", "days": 2})],
    ),
    (
        GLM,
        "<tool_call>now</tool_call><tool_call>f<arg_key>a</arg_key><arg_value>[1]</arg_value></tool_call>",
        "",
        [("now", {}), ("f", {"a": [1]})],
    ),
    # DeepSeek
    (
        DEEPSEEK,
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n"
            '{"x": "```"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        ),
        "",
        [("a", {"x": "```"})],
    ),
    (
        DEEPSEEK,
        (
            "Ok <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n"
            '<｜tool▁call▁begin｜>b<｜tool▁sep｜>{"x":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        ),
        "Ok",
        [("a", {}), ("b", {"x": 1})],
    ),
    (
        DEEPSEEK,
        "Ok<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n\nDone",
        "Ok\n\nDone",
        [("a", {})],
    ),
    (DEEPSEEK, "<|tool_call_begin|>function<|tool_sep|>a\n```\n{}\n```", "", [("a", {})]),
    # Gemma
    (
        "<start_function_call>",
        (
            "<start_function_call>call:get_weather{city:<escape>a,}b<escape>,days:3,"
            "o:{k:[true,null,-1.5,x]}}<end_function_call>"
        ),
        "",
        [("get_weather", {"city": "a,}b", "days": 3, "o": {"k": [True, None, -1.5, "x"]}})],
    ),
    (
        "<|tool_call>",
        'Hm.\n<|tool_call>call:a{x:<|"|>{"j":1}<|"|>}<tool_call|><|tool_call>call:b{}<tool_call|>',
        "Hm.",
        [("a", {"x": '{"j":1}'}), ("b", {})],
    ),
    (
        "<|tool_call>",
        "<|tool_call>call:a{n:" + "1" * 400 + ",x:1" + "0" * 299 + "e99}",
        "",
        [("a", {"n": "1" * 400, "x": "1" + "0" * 299 + "e99"})],
    ),
    # LFM2, Olmo, Llama 4
    (
        "<|tool_call_start|>",
        (
            "<|tool_call_start|>[get_weather(city='it\\'s', metric=True), a.b(o={'k': [1, None]})]"
            "<|tool_call_end|>Done."
        ),
        "Done.",
        [("get_weather", {"city": "it's", "metric": True}), ("a.b", {"o": {"k": [1, None]}})],
    ),
    ("<|tool_call_start|>", '<|tool_call_start|>[{"name": "a"}]<|tool_call_end|>', "", [("a", {})]),
    (
        "<function_calls>",
        '<function_calls>\nnow()\nget_weather("x", 2)\n</function_calls>',
        "",
        [("now", {}), ("get_weather", {"city": "x", "days": 2})],
    ),
    ("<|python_start|>", "<|python_start|>[now()]<|python_end|>", "", [("now", {})]),
    # Granite, Phi, Command, Nemotron, FireFunction
    ("<|tool_call|>", '<|tool_call|>[{"name": "a", "arguments": {}}]', "", [("a", {})]),
    (
        "<|tool|>",
        '<|tool_call|>[{"type": "function", "function": {"name": "a"}}]<|/tool_call|>',
        "",
        [("a", {})],
    ),
    (
        "<|START_ACTION|>",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "a", "parameters": {"x": 1}}]',
        "",
        [("a", {"x": 1})],
    ),
    ("<TOOLCALL>", '<TOOLCALL>[{"name": "a"}]</TOOLCALL>', "", [("a", {})]),
    ("functools", 'functools[{"name": "a", "arguments": {"x": 1}}]', "", [("a", {"x": 1})]),
]


@pytest.mark.contract("chat.tool-families", "chat.key-order")
@pytest.mark.parametrize("template,text,content,called", CASES)
def test_calls_are_parsed_from_every_split(
    template: str, text: str, content: str, called: Called
) -> None:
    answer = read(template, text, n_cuts=2 if len(text) < 70 else 1)
    assert answer.content == content
    assert answer.called == called
    assert [call.index for call in answer.calls] == list(range(len(called)))
    # The order of keys is the model's.
    for call, (_, arguments) in zip(answer.calls, called, strict=True):
        assert list(call.arguments) == list(arguments)


#: Text of each family that begins like a call but is none.
@pytest.mark.parametrize(
    "template,text",
    [
        (HERMES, "Write <tool_call> and </tool_call> around it."),
        (HERMES, '<tool_call>{"name": "a", "arguments": {"x": }}</tool_call>'),
        (HERMES, '<tool_call>{"name": "a", "arguments": {"x": 1}</tool_call>'),
        (HERMES, '<tool_call>{"name": "a", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "a", "arguments": "x"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>'),
        (HERMES, '<tool_call>{"arguments": {}} </tool_call>'),
        (HERMES, "<tool_call>[]</tool_call>"),
        (HERMES, 'text <tool_call>\n{"name": "a", "argu'),
        (HERMES, "<tool_cal"),
        (LLAMA, '{"answer": {"name": "now"}}'),
        (LLAMA, '{"name": "Bob", "parameters": {}}'),
        (LLAMA, '{"name": "get_weather'),
        (LLAMA, '{"type": "function", "name": "unknown"} and so on'),
        (LLAMA, 'I call {"name": "now", "parameters": {}}'),
        (LLAMA, "[1, 2, 3]"),
        (LLAMA, "[see](https://x) [now()]"),
        (LLAMA, "[now(x=open('/etc/passwd'))]"),
        (LLAMA, "[now(**{})]"),
        (LLAMA, "[now(), unknown()]"),
        # Python values that JSON does not have.
        (LLAMA, "[now(a=1e999)]"),
        (LLAMA, "[now(a=-1e999)]"),
        (LLAMA, "[now(a=[{'b': -1e999}])]"),
        (LLAMA, "[now(a=1j)]"),
        ("<|tool_call_start|>", f"<|tool_call_start|>[f(a=0x{'f' * 4000})]<|tool_call_end|>"),
        (LLAMA, "{}"),
        (LLAMA, "<|python_tag|>print('hi')"),
        (MISTRAL, "[TOOL_CALLS]"),
        (MISTRAL, "[TOOL_CALLS] nothing here"),
        (MISTRAL, '[TOOL_CALLS]a[ARGS]{"x": 1'),
        (MISTRAL, "[TOOL_CALLS][1]"),
        (CODER, "<function=>\n</function>"),
        (CODER, "<function=f>\n<parameter=x>\n1\n"),
        (CODER, "<function=f> and more"),
        (CODER, "a <function=f"),
        (GLM, "<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>1"),
        (GLM, "<tool_call>!</tool_call>"),
        (DEEPSEEK, "<｜tool▁calls▁begin｜>none<｜tool▁calls▁end｜>"),
        (DEEPSEEK, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n{x}\n```"),
        ("<start_function_call>", "<start_function_call>call:a{x:<escape>b}<end_function_call>"),
        ("<start_function_call>", "<start_function_call>a{}"),
        ("<|tool_call>", "<|tool_call>call:a{" + "x:{" * 60),
        ("<|tool_call>", "<|tool_call>call:a{" + "x:{" * 60 + "}" * 61),
        ("<|tool_call>", "<|tool_call>call:a{x:" + "[" * 60 + "]" * 60 + "}"),
        ("<|tool_call_start|>", "<|tool_call_start|>[f(x=y)]<|tool_call_end|>"),
        ("<|tool_call_start|>", "<|tool_call_start|>[f(1)]<|tool_call_end|>"),
        ("<|tool_call_start|>", "<|tool_call_start|>x = 1<|tool_call_end|>"),
        ("<|tool_call_start|>", "<|tool_call_start|>[f({1: 2})]"),
        ("<|tool_call_start|>", "<|tool_call_start|>" + "(" * 300),
    ],
)
def test_text_that_is_no_call_stays_unchanged(template: str, text: str) -> None:
    answer = read(template, text, n_cuts=2 if len(text) < 60 else 1)
    assert answer.content == text
    assert answer.calls == ()


@pytest.mark.contract("templates.thinking-tags")
@pytest.mark.parametrize(
    "tag,text,content,called",
    [
        # As in the template; the text before the JSON may be the name.
        (
            "<tool>",
            'Hm <tool>{"name": "now", "arguments": {"x": 1}}</tool>',
            "Hm",
            [("now", {"x": 1})],
        ),
        ("<tool>", '<tool>now{"x": 1}</tool> ok', "ok", [("now", {"x": 1})]),
        ("<tool>", '<tool>{"now": {"x": 1}}', "", [("now", {"x": 1})]),
        ("<tool>", '<tool>{"tool_name": "now", "parameters": "{}"}', "", [("now", {})]),
        (
            "<tool>",
            '<tool>[{"name": "now"}, {"name": "now", "parameters": {"y": 2}}]',
            "",
            [("now", {}), ("now", {"y": 2})],
        ),
        ("<tool>", '<tool>{"name": "then"}', '<tool>{"name": "then"}', []),
        ("<tool>", "<tool>" + "x" * 300, "<tool>" + "x" * 300, []),
        ("[TOOL_CALLS] [", '[TOOL_CALLS] [{"name": "now", "arguments": {}}]', "", [("now", {})]),
        (
            "Action: ```json\n[",
            'Action: ```json\n[{"tool_name": "now", "parameters": {}}]\n```',
            "",
            [("now", {})],
        ),
        # A brace counts only at the start.
        ("{", ' {"now": {"x": 1}} ', "", [("now", {"x": 1})]),
        ("{", '{"name": "now", "parameters": {"x": 1}}', "", [("now", {"x": 1})]),
        ("{", 'So {"name": "now"}', 'So {"name": "now"}', []),
        ("{", '{"a": 1}', '{"a": 1}', []),
        ("[", '[{"now": {}}]', "", [("now", {})]),
    ],
)
def test_calls_after_the_tag_of_a_go_template(
    tag: str, text: str, content: str, called: Called
) -> None:
    answer = read("", text, tag=tag, n_cuts=2 if len(text) < 60 else 1)
    assert (answer.content, answer.called) == (content, called)


def test_the_longest_matching_tool_name_wins() -> None:
    tools = [{"function": {"name": name}} for name in ("get", "get_weather", "weather")]
    parser = ToolParser(formats("", tag="<t>"), Tools(tools), new_id=ids())
    assert parse(parser, ['<t>call get_weather with {"city": "x"}']).called == [
        ("get_weather", {"city": "x"})
    ]


def test_an_unknown_template_gets_the_usual_formats() -> None:
    for text in (
        '<tool_call>{"name": "now"}</tool_call>',
        '[TOOL_CALLS][{"name": "now"}]',
        "<function=now></function>",
        '{"name": "now"}',
    ):
        assert read("no signs here", text).called == [("now", {})]


@pytest.mark.contract("templates.parsers")
@pytest.mark.parametrize(
    "parser,text",
    [
        ("qwen3", '<tool_call>{"name": "now"}</tool_call>'),
        ("qwen3-coder", "<tool_call><function=now></function></tool_call>"),
        ("ministral", "[TOOL_CALLS]now[ARGS]{}"),
        ("deepseek3", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"),
        ("functiongemma", "<start_function_call>call:now{}<end_function_call>"),
        ("gemma4", "<|tool_call>call:now{}<tool_call|>"),
        ("glm-4.7", "<tool_call>now</tool_call>"),
        ("lfm2", "<|tool_call_start|>[now()]<|tool_call_end|>"),
        ("olmo3", "<function_calls>now()</function_calls>"),
        ("cohere", '<|START_ACTION|>[{"tool_name": "now"}]<|END_ACTION|>'),
        ("nobody-knows", '<tool_call>{"name": "now"}</tool_call>'),
    ],
)
def test_the_parsers_name_selects_formats(parser: str, text: str) -> None:
    assert read("", text, parser=parser).called == [("now", {})]


def test_formats_name_their_control_tokens() -> None:
    seen = {token for form in formats(MISTRAL + DEEPSEEK + LLAMA) for token in form.tokens}
    assert {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"} <= seen
    assert {"<｜tool▁sep｜>", "<｜tool▁call▁end｜>"} <= seen
    assert not {"{", "["} & seen
