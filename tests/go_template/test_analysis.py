"""Capabilities, thinking tags and tool tag of a template."""

from __future__ import annotations

import pytest

from specd.go_template import analysis

pytestmark = pytest.mark.contract("templates.thinking-tags")

THINKS = (
    "{{ range $i, $_ := .Messages }}"
    "{{ if and $.IsThinkSet .Thinking -}}\n<reason>\n{{ .Thinking }}\n</reason>\n{{ end }}"
    "{{ .Content }}{{ end }}"
)
CALLS = (
    "{{ if .Tools }}{{ .Tools }}{{ end }}{{ range .Messages }}"
    '{{ if eq .Role "assistant" }}{{ .Content }}'
    "{{ else if .ToolCalls }}<call>\n"
    '{{ range .ToolCalls }}{"name": "{{ .Function.Name }}"}{{ end }}'
    '{{ else if eq .Role "tool" }}{{ .Content }}{{ end }}{{ end }}'
)


@pytest.mark.parametrize(
    "text,names",
    [
        ("Use .Tools {{ .System }}", {"system"}),
        ("{{ $x := .A.B }}{{ if eq (len .C) 1 }}{{ $x.D }}{{ end }}", {"$x", "a", "b", "c", "d"}),
        ('{{ define "t" }}{{ .Tools }}{{ end }}', {"tools"}),
        ('{{ template "t" .Messages }}', {"messages"}),
        ("{{ (index .A 0).Tools }}", set()),
        ("{{ .Damaged", set()),
    ],
)
def test_variables_are_the_fields_in_the_actions(text: str, names: set[str]) -> None:
    assert analysis.variables(text) == names


@pytest.mark.parametrize(
    "text,tags",
    [
        (THINKS, ("<reason>", "</reason>")),
        (
            "{{ range .Messages }}{{ if .Thinking }}<a>{{ .Thinking }}</a>{{ end }}{{ end }}",
            ("<a>", "</a>"),
        ),
        ("{{ range .Messages }}{{ with .Thinking }}<a>{{ . }}</a>{{ end }}{{ end }}", None),
        ("{{ range .Messages }}{{ if .Thinking }}<a>{{ .Thinking }}{{ end }}{{ end }}", None),
        ("<a>{{ .Thinking }}</a>", None),
        ("{{ range .Others }}<a>{{ .Thinking }}</a>{{ end }}", None),
        (
            "{{ range .Messages }}<a>{{ range .X }}<b>{{ .Thinking }}</b>{{ end }}</a>{{ end }}",
            None,
        ),
        (
            "{{ range .Messages }}{{ if .X }}{{ else }}<a>{{ .Thinking }}</a>{{ end }}{{ end }}",
            ("<a>", "</a>"),
        ),
        ("{{ .Damaged", None),
    ],
)
def test_thinking_tags_are_the_texts_around_thinking(
    text: str, tags: tuple[str, str] | None
) -> None:
    assert analysis.thinking_tags(text) == tags


@pytest.mark.parametrize(
    "text,tag",
    [
        (CALLS, "<call>"),
        (
            '{{ if .ToolCalls }}  {{ range .ToolCalls }}[CALLS] [{"n": 1}]{{ end }}{{ end }}',
            "[CALLS] [",
        ),
        ('{{ if .ToolCalls }}{"name": {{ end }}', "{"),
        ("{{ if .ToolCalls }}{{ .Content }}<late>{{ end }}", "{"),
        ("{{ if and .ToolCalls .Content }}<t>{{ end }}", "<t>"),
        ("{{ with .X }}{{ else }}{{ if .ToolCalls }}<t>{{ end }}{{ end }}", "<t>"),
        ("{{ .ToolCalls }}<t>", "{"),
        ("{{ .Damaged", "{"),
    ],
)
def test_the_tool_tag_is_the_first_text_of_the_branch(text: str, tag: str) -> None:
    assert analysis.tool_tag(text) == tag


@pytest.mark.parametrize(
    "text,found",
    [
        (THINKS, ("thinking",)),
        (CALLS, ("tools",)),
        ("{{ .Prompt }}{{ .Suffix }}", ("insert",)),
        (CALLS + THINKS + "{{ .Suffix }}", ("tools", "insert", "thinking")),
        ("{{ .Prompt }}", ()),
    ],
)
def test_capabilities_of_a_template(text: str, found: tuple[str, ...]) -> None:
    assert analysis.capabilities(text) == found


def test_a_tool_round_trip_needs_tools_calls_and_results() -> None:
    assert analysis.has_tool_round_trip(CALLS)
    assert not analysis.has_tool_round_trip(CALLS.replace('eq .Role "tool"', "true"))
    assert not analysis.has_tool_round_trip(CALLS.replace(".ToolCalls", ".X"))
