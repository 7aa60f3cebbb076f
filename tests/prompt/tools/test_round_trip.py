"""Small templates in each family's format render calls, and the parser parses them back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import LocalModel, Message, Templating, ToolCall
from specd.prompt import AnswerFormat
from specd.prompt.chat_template import render_chat
from specd.prompt.go_prompt import Thinking, go_chat
from tests.prompt.tools.splits import TOOLS, cut, ids, parse

END = "<|im_end|>"
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}CALLS{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EACH = "{% for c in m.tool_calls %}%s{% endfor %}"
CALLS = {
    "hermes": EACH.replace(
        "%s",
        '\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
        "{{ c.function.arguments | tojson }}}\n</tool_call>",
    ),
    "llama": EACH.replace(
        "%s",
        '{% if not loop.first %}; {% endif %}{"name": "{{ c.function.name }}", "parameters": '
        "{{ c.function.arguments | tojson }}}{# <|start_header_id|> #}",
    ),
    "mistral list": '[TOOL_CALLS] [{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]",
    "mistral args": EACH.replace(
        "%s", "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"
    ),
    "coder": EACH.replace(
        "%s",
        "\n<tool_call>\n<function={{ c.function.name }}>\n"
        "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n"
        "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
        "</function>\n</tool_call>",
    ),
    "glm": EACH.replace(
        "%s",
        "\n<tool_call>{{ c.function.name }}\n"
        "{% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>",
    ),
    "deepseek r1": "<｜tool▁calls▁begin｜>"
    + EACH.replace(
        "%s",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}\n```json\n"
        "{{ c.function.arguments | tojson }}\n```<｜tool▁call▁end｜>\n",
    )
    + "<｜tool▁calls▁end｜>",
    "deepseek v3.1": "<｜tool▁calls▁begin｜>"
    + EACH.replace(
        "%s",
        "<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>"
        "{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>",
    )
    + "<｜tool▁calls▁end｜>",
    "granite": '<|tool_call|>[{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]",
}
GO = {
    "go hermes": '{{ range .ToolCalls }}<tool_call>\n{"name": "{{ .Function.Name }}", "arguments": '
    "{{ .Function.Arguments }}}\n</tool_call>{{ end }}",
    "go tag": '{{ range .ToolCalls }}<tool>{"name": "{{ .Function.Name }}", "parameters": '
    "{{ .Function.Arguments }}}</tool>\n{{ end }}",
    "go bare": '{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "parameters": '
    "{{ .Function.Arguments }}}{{ end }}",
    "go mistral": '[TOOL_CALLS] [{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", '
    '"arguments": {{ .Function.Arguments }}}{{ end }}]',
}
GO_TURNS = (
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}{{ if .ToolCalls }}CALLS{{ end }}"
    "<|im_end|>\n{{ end }}{{ if .Tools }}tools{{ end }}"
)


def model(name: str) -> LocalModel:
    spoken = LocalModel(name="m", full_name="m", digest="", weights=Path("/m"))
    if name in GO:
        text = GO_TURNS.replace("CALLS", GO[name])
        return replace(spoken, go_template=text, templating=Templating.GO)
    return replace(spoken, chat_template=TURNS.replace("CALLS", CALLS[name]))


def rendered(name: str, content: str, calls: tuple[ToolCall, ...]) -> str:
    """Return the assistant's text as the template renders it."""
    turns = [
        Message(role="user", content="?"),
        Message(role="assistant", content=content, tool_calls=calls),
    ]
    spoken = model(name)
    if spoken.go_template is not None:
        text = go_chat(spoken.go_template, turns, thinking=Thinking())
    else:
        text = render_chat(spoken.chat_template, turns, add_generation_prompt=False)
    return text.partition("<|im_start|>assistant\n")[2].partition(END)[0]


ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": st.text(st.sampled_from("ab {}[]\"\\\n'<>&é日😀|"), min_size=1, max_size=12)
        .map(str.strip)
        .filter(bool),
        "days": st.integers(-9, 99),
        "metric": st.booleans(),
        "places": st.lists(st.sampled_from(["a", "]}", "é"]), max_size=2),
    },
)


@settings(deadline=None)
@pytest.mark.parametrize("name", [*CALLS, *GO])
@given(
    content=st.sampled_from(["", "Let me look."]),
    asked=st.lists(ARGUMENTS, min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 300), max_size=4),
)
def test_rendered_calls_are_parsed_back(
    name: str, content: str, asked: list[dict[str, object]], cuts: list[int]
) -> None:
    if content and name in {"llama", "go bare"}:
        return  # these formats have no tag, so a call cannot follow text
    calls = tuple(
        ToolCall(name="get_weather", arguments=arguments, id=f"call_{n:08}", index=n - 1)
        for n, arguments in enumerate(asked, start=1)
    )
    text = rendered(name, content, calls)
    form = AnswerFormat.of(model(name), tools=TOOLS)
    reader = form.parser("<|im_start|>assistant\n", new_id=ids())
    assert reader is not None
    answer = parse(reader, cut(text, cuts))
    assert answer.content == content, text
    assert [json.dumps(called) for called in answer.called] == [
        json.dumps(
            (call.name, dict(sorted(call.arguments.items()) if name in GO else call.arguments))
        )
        for call in calls
    ]
    assert [(call.id, call.index) for call in answer.calls] == [(c.id, c.index) for c in calls]
