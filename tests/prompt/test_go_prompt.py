"""Chats and texts through Go templates, as Ollama gives them to its models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specd.core import Message, ToolCall
from specd.errors import GoTemplateError
from specd.prompt.go_prompt import Thinking, go_chat, go_infill
from tests.fast import computes_long

pytestmark = pytest.mark.contract("templates.go-modes", "templates.go-json")

OFF = Thinking()
TURNS = "{{ range .Messages }}[{{ .Role }}:{{ .Content }}]{{ end }}"
LEGACY = "{{ if .System }}<s>{{ .System }}{{ end }}<u>{{ .Prompt }}<a>{{ .Response }}<end>"

SYSTEM = Message(role="system", content="Be brief.")
USER = Message(role="user", content="Hi")
ASSISTANT = Message(role="assistant", content="Hello")
AGAIN = Message(role="user", content="Bye")

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "of a <city>",
        "strict": True,
        "parameters": {
            "type": "object",
            "required": ["city"],
            "additionalProperties": False,
            "properties": {
                "unit": {"enum": ["C", "F"], "type": ["string", "null"], "default": "C"},
                "city": {"type": "string", "description": "where"},
                "days": {
                    "anyOf": [{"type": "integer"}, {"type": "array", "items": {"b": 1, "a": 2}}]
                },
            },
        },
    },
}


def chat(template: str, *messages: Message, **options: Any) -> str:
    return go_chat(template, messages, **({"thinking": OFF} | options))


# ------------------------------------------------------------------------ messages mode


def test_a_template_with_messages_gets_the_whole_chat() -> None:
    text = chat(TURNS + "|{{ .System }}|{{ .Response }}|{{ .Prompt }}", SYSTEM, USER, ASSISTANT)
    assert text == "[system:Be brief.][user:Hi][assistant:Hello]|Be brief.||<no value>"


def test_adjacent_messages_of_one_role_are_merged_and_system_texts_joined() -> None:
    tool = Message(role="tool", content="1", tool_name="f")
    turns = (SYSTEM, SYSTEM, USER, AGAIN, tool, tool, SYSTEM)
    assert chat(TURNS + "{{ .System }}", *turns) == (
        "[system:Be brief.\n\nBe brief.][user:Hi\n\nBye][tool:1][tool:1][system:Be brief.]"
        "Be brief.\n\nBe brief.\n\nBe brief."
    )


def test_a_message_has_all_its_fields() -> None:
    call = ToolCall(name="f", arguments={"b": 1, "a": ["<", 2.5, 10**6]}, id="call_1", index=1)
    template = (
        "{{ range .Messages }}{{ .Thinking }}|{{ len .Images }}|{{ .ToolName }}|{{ .ToolCallID }}|"
        "{{ range .ToolCalls }}{{ .ID }} {{ .Function.Index }} {{ .Function.Name }} "
        "{{ .Function.Arguments }}{{ range $k, $v := .Function.Arguments }} {{ $k }}={{ $v }}"
        "{{ end }}{{ end }}{{ end }}"
    )
    message = Message(
        role="assistant",
        thinking="hm",
        images=(b"x",),
        tool_calls=(call,),
        tool_name="g",
        tool_call_id="call_0",
    )
    assert chat(template, message) == (
        'hm|1|g|call_0|call_1 1 f {"a":["\\u003c",2.5,1000000],"b":1} a=[< 2.5 1000000] b=1'
    )


# --------------------------------------------------------------------------------- tools


def test_tools_print_as_json_known_keys_first_properties_sorted() -> None:
    text = chat("{{ .Tools }}{{ range .Messages }}{{ end }}", tools=[TOOL])
    assert text == (
        '[{"type":"function","function":{"name":"get_weather",'
        '"description":"of a \\u003ccity\\u003e","parameters":{'
        '"type":"object","required":["city"],"properties":{'
        '"city":{"type":"string","description":"where"},'
        '"days":{"anyOf":[{"type":"integer"},{"type":"array","items":{"a":2,"b":1}}]},'
        '"unit":{"type":["string","null"],"enum":["C","F"],"default":"C"}},'
        '"additionalProperties":false},"strict":true}}]'
    )


@pytest.mark.contract("templates.go-functions")
@pytest.mark.parametrize("part", [".", ".Function", ".Function.Parameters", "json ."])
def test_the_parts_of_a_tool_print_as_json(part: str) -> None:
    text = chat(
        "{{ range .Tools }}{{ " + part + " }}{{ end }}{{ range .Messages }}{{ end }}", tools=[TOOL]
    )
    found = json.loads(text)
    assert found in (TOOL, TOOL["function"], TOOL["function"]["parameters"])


@pytest.mark.contract("templates.go-functions")
def test_properties_iterate_by_name_with_their_types() -> None:
    template = (
        "{{ range .Tools }}{{ range $name, $p := .Function.Parameters.Properties }}"
        "{{ $name }}: {{ $p.Type }} {{ toTypeScriptType $p }} {{ $p.ToTypeScriptType }} "
        "{{ $p.Description }}{{ range $p.Enum }}{{ . }},{{ end }};{{ end }}"
        "{{ .Function.Parameters.Required }}{{ end }}{{ range .Messages }}{{ end }}"
    )
    assert chat(template, tools=[TOOL]) == (
        "city: string string string where;"
        "days:  number | any[] number | any[] ;"
        "unit: [string null] string | null string | null C,F,;[city]"
    )


EMPTY = '{"name":"","description":"","parameters":{"type":"","properties":null}}'


@pytest.mark.parametrize(
    "tool,json_text",
    [
        ({}, f'{{"type":"","function":{EMPTY}}}'),
        (
            {"type": "function", "items": [1], "function": 3, "x": None},
            f'{{"type":"function","items":[1],"function":{EMPTY},"x":null}}',
        ),
    ],
)
def test_a_malformed_tool_renders(tool: dict[str, object], json_text: str) -> None:
    template = "{{ range .Tools }}{{ . }}{{ end }}{{ range .Messages }}{{ end }}"
    assert chat(template, tools=[tool]) == json_text


def test_tools_are_false_without_tools() -> None:
    template = "{{ if .Tools }}tools{{ end }}{{ .Tools }}{{ range .Messages }}{{ end }}"
    assert chat(template) == "null"


# ----------------------------------------------------------------------------- turn by turn


def test_a_template_without_messages_runs_once_per_turn_up_to_the_response() -> None:
    assert chat(LEGACY, SYSTEM, USER) == "<s>Be brief.<u>Hi<a>"
    assert chat(LEGACY, SYSTEM, USER, ASSISTANT, AGAIN) == (
        "<s>Be brief.<u>Hi<a>Hello<end><u>Bye<a>"
    )
    assert chat(LEGACY, USER, ASSISTANT) == "<u>Hi<a>Hello"
    assert chat(LEGACY, USER, SYSTEM) == "<u>Hi<a><end><s>Be brief.<u><a>"
    assert chat(LEGACY) == "<u><a>"


@pytest.mark.parametrize(
    "template,text",
    [
        ("{{ .Prompt }}", "Hi"),
        ("{{ .Prompt }}{{ if .System }}x{{ end }}", "Hi"),
        ("{{ if .Prompt }}<u>{{ .Prompt }}<a>{{ .Response }}<e>{{ end }}<end>", "<u>Hi<a>"),
        ("{{ if .System }}s{{ else }}{{ .Prompt }}{{ .Response }}e{{ end }}end", "Hi"),
        (
            "{{ if .Prompt }}{{ .Prompt }}<a>{{ .Response }}e{{ else }}{{ .System }}{{ end }}end",
            "Hi<a>",
        ),
        ("{{ .Prompt }}{{ with .Prompt }}{{ $.Response }}x{{ end }}y", "Hixy"),
        ("{{ .Prompt }}<a>{{ printf `%s` .Response }}<e>", "Hi<a>"),
    ],
)
def test_the_prompt_ends_at_the_response(template: str, text: str) -> None:
    assert chat(template, USER) == text


def test_a_template_without_a_response_gets_it_appended() -> None:
    turns = (USER, ASSISTANT, AGAIN)
    assert chat("<u>{{ .Prompt }}<a>", *turns) == "<u>Hi<a>Hello<u>Bye<a>"


# ------------------------------------------------------------------------------- the rest


def test_infill_gets_the_text_before_and_after_the_gap() -> None:
    template = (
        "{{ if .Suffix }}<pre>{{ .Prompt }}<suf>{{ .Suffix }}<mid>{{ else }}{{ .Prompt }}{{ end }}"
    )
    assert go_infill(template, "def f(", "return x", OFF) == "<pre>def f(<suf>return x<mid>"
    assert chat(template, USER) == "Hi"


@pytest.mark.contract("think.go")
@pytest.mark.parametrize(
    "think,can_think,says",
    [
        (None, False, "false  false"),
        (None, True, "true medium true"),
        (True, True, "true medium true"),
        (False, True, "false  true"),
        ("max", True, "true max true"),
    ],
)
def test_think_is_on_by_default_if_the_model_can_think(
    think: bool | str | None, can_think: bool, says: str
) -> None:
    thinking = Thinking.of(think, can_think=can_think)
    template = "{{ .Think }} {{ .ThinkLevel }} {{ .IsThinkSet }}"
    assert chat(template, thinking=thinking) == says
    assert chat(template + "{{ range .Messages }}{{ end }}", thinking=thinking) == says


@computes_long
def test_all_turns_of_a_chat_share_one_budget() -> None:
    costly = "{{ range 100000 }}{{ end }}{{ .Prompt }}{{ .Response }}"
    assert chat(costly, USER) == "Hi"
    with pytest.raises(GoTemplateError, match="takes too"):
        chat(costly, *(USER, ASSISTANT) * 12)


def test_the_error_of_a_template_has_its_position() -> None:
    with pytest.raises(GoTemplateError, match=r'^template: :1:24: executing "" at <.Nope>: can'):
        chat("{{ range .Messages }}{{ .Nope }}{{ end }}", USER)
    with pytest.raises(GoTemplateError, match="unclosed action"):
        chat("{{ .Messages", USER)
