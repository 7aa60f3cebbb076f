"""The answer format comes from the template or from the name of the parser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specd import core
from specd.prompt import AnswerFormat
from specd.prompt.answer_format import AnswerParser, uses_harmony
from tests.prompt.tools.splits import TOOLS, Answer, ids, parse, parsed

MODEL = core.LocalModel(name="m:latest", full_name="m", digest="", weights=Path("/m"))
HARMONY = "{{ '<|start|>' }}{{ '<|channel|>' }}{{ '<|message|>' }}"
CALL = '<tool_call>{"name": "now"}</tool_call>'
THINKER = "<think></think><tool_call>"


def of(
    template: str = "", *, tools: bool = False, think: Any = None, **fields: Any
) -> AnswerFormat:
    model = replace(MODEL, chat_template=template, **fields)
    return AnswerFormat.of(model, tools=TOOLS if tools else (), think=think)


def read(form: AnswerFormat, text: str, prompt: str = "") -> Answer:
    parser = form.parser(prompt, new_id=ids())
    return Answer(content=text) if parser is None else parse(parser, [text])


def reader(form: AnswerFormat) -> AnswerParser:
    parser = form.parser("", new_id=ids())
    assert parser is not None
    return parser


@pytest.mark.parametrize(
    "template,tags",
    [
        ("{{ '<think>' }}{{ '</think>' }}", ("<think>", "</think>")),
        ("[THINK]x[/THINK]", ("[THINK]", "[/THINK]")),
        ("<seed:think></seed:think>", ("<seed:think>", "</seed:think>")),
        ("<|START_THINKING|><|END_THINKING|>", ("<|START_THINKING|>", "<|END_THINKING|>")),
        ("<|channel>thought\n<channel|>", ("<|channel>thought", "<channel|>")),
        (
            "Here is my thought process: Here is my response:",
            ("Here is my thought process:", "Here is my response:"),
        ),
        ("</think> alone", None),
    ],
)
def test_tags_come_from_the_template(template: str, tags: tuple[str, str] | None) -> None:
    form = of(template)
    assert form.tags == tags
    assert form.is_thinking == (tags is not None)
    if tags is not None:
        assert set(tags) <= set(form.visible)
        assert read(form, f"\n{tags[0]}\nhm{tags[1]}\n\nyes") == Answer("yes", "hm")


def test_a_thinking_model_has_tags_even_if_its_template_has_none() -> None:
    assert of(capabilities=("completion", "thinking")).tags == ("<think>", "</think>")
    assert of(parser="ministral").tags == ("[THINK]", "[/THINK]")
    assert of(parser="gemma4").tags == ("<|channel>thought", "<channel|>")
    assert of(parser="cohere").tags == ("<|START_THINKING|>", "<|END_THINKING|>")


def test_tags_and_calls_of_a_go_template() -> None:
    text = (
        "{{ range .Messages }}{{ if .Thinking }}<muse>{{ .Thinking }}</muse>{{ end }}{{ .Content }}"
        "{{ if .ToolCalls }}<do>{{ range .ToolCalls }}{{ .Function.Arguments }}{{ end }}{{ end }}"
        "{{ end }}{{ .Tools }}"
    )
    form = of(go_template=text, templating=core.Templating.GO, tools=True)
    assert form.tags == ("<muse>", "</muse>")
    answer = read(form, '<muse>a</muse>b <do>{"now": {}}')
    assert (answer.content, answer.thinking, answer.names) == ("b", "a", ["now"])


@pytest.mark.contract("think.apart")
@pytest.mark.parametrize("think", [None, True, "high", False])
def test_thinking_is_separated_even_if_not_requested(think: Any) -> None:
    assert read(of(THINKER, think=think), "<think>hm</think>yes") == Answer("yes", "hm")
    ministral = of("{{ x }}", think=think, parser="ministral")
    assert read(ministral, "[THINK]hm[/THINK]yes") == Answer("yes", "hm")
    called = read(of(THINKER, think=think, tools=True), f"<think>hm</think>yes {CALL}")
    assert (called.content, called.thinking, called.names) == ("yes", "hm", ["now"])


def test_an_answer_without_thinking_is_unchanged() -> None:
    for text in ("  yes <think>no</think>", "<thin", "\n"):
        assert read(of(THINKER, think=False), text) == Answer(text)
    assert of("no tags").parser("") is None


def test_thinking_opened_by_the_template_is_separated_from_the_answer() -> None:
    form = of(THINKER, think=False)
    assert read(form, "hm</think>\n\nyes", "<|assistant|><think>\n") == Answer("yes", "hm")
    assert form.thinking_tags("<|assistant|><think>\n") == ("", "</think>")
    assert form.thinking_tags("<|assistant|>") is None


def test_thinking_tags_for_a_grammar() -> None:
    assert of(THINKER).thinking_tags("") == ("<think>", "</think>")
    assert of(THINKER).thinking_tags("x<think>\n") == ("", "</think>")
    assert of("no tags").thinking_tags("") is None
    assert of(HARMONY).thinking_tags("<|start|>assistant") == ("", "<|channel|>final<|message|>")
    begun = "<|start|>assistant<|channel|>final<|message|>"
    assert of(HARMONY).thinking_tags(begun) is None


def test_calls_are_parsed_only_with_tools() -> None:
    assert read(of(THINKER), CALL) == Answer(CALL)
    assert read(of("<tool_call>", tools=True), CALL).names == ["now"]
    assert "<tool_call>" in of("<tool_call>", tools=True).visible
    assert of("<tool_call>").visible == ()


def test_calls_inside_thinking_do_not_count() -> None:
    form = of(THINKER, tools=True)
    text = f"<think>perhaps {CALL}?</think>\n\nI look.\n{CALL}"
    answer = parsed(lambda: reader(form), text, n_cuts=1)
    assert answer.content == "I look."
    assert answer.thinking == f"perhaps {CALL}?"
    assert answer.names == ["now"]


@pytest.mark.parametrize(
    "text,names",
    [
        (f"<think>I must look.\n{CALL}", ["now"]),
        (f"<think>{CALL}{CALL}\n", ["now", "now"]),
        (f"<think>I could {CALL} or not", []),
        (f"<think>{CALL}</think>", []),
        (f"{CALL}</think>", ["now"]),
    ],
)
def test_calls_at_the_end_of_unclosed_thinking_count(text: str, names: list[str]) -> None:
    form = of(THINKER, tools=True)
    answer = parsed(lambda: reader(form), text, n_cuts=1)
    assert answer.names == names
    assert [call.index for call in answer.calls] == list(range(len(names)))


@pytest.mark.parametrize(
    "fields,speaks",
    [
        ({"chat_template": HARMONY}, True),
        ({"parser": "harmony"}, True),
        (
            {
                "family": "gptoss",
                "go_template": "<|start|><|end|>",
                "templating": core.Templating.GO,
            },
            True,
        ),
        ({"architecture": "gpt-oss", "chat_template": "<|start|>"}, True),
        ({"family": "gptoss", "chat_template": "<|im_start|>"}, False),
        ({"chat_template": "<|start|>"}, False),
        ({}, False),
    ],
)
def test_harmony_is_detected_by_its_tokens(fields: dict[str, Any], speaks: bool) -> None:
    assert uses_harmony(replace(MODEL, **fields)) == speaks


def test_harmony_always_thinks_and_calls_only_with_tools() -> None:
    text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
    for think in (None, False, "low"):
        form = of(HARMONY, think=think)
        assert form.is_thinking
        assert read(form, text, "<|start|>assistant") == Answer("b", "a")
    assert "<|channel|>" in of(HARMONY).visible
    call = "<|channel|>commentary to=functions.now<|message|>{}"
    assert read(of(HARMONY, tools=True), call).names == ["now"]
    assert read(of(HARMONY), call) == Answer("{}")


def test_call_ids_have_nine_characters_if_the_template_requires_it() -> None:
    for template, n in (("[TOOL_CALLS] {% if id|length != 9 %}", 9), ("[TOOL_CALLS]", 13)):
        parser = of(template, tools=True).parser("")
        assert parser is not None
        (call,) = parse(parser, ["[TOOL_CALLS]now[ARGS]{}"]).calls
        assert len(call.id) == n
        assert call.id.removeprefix("call_").isalnum()
