"""gpt-oss: channels become thinking, content and calls, for every split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.prompt.tools import HarmonyParser, Tools
from specd.prompt.tools.harmony import Header, open_message
from tests.prompt.tools.splits import TOOLS, Answer, cut, ids, parse, parsed

PROMPT = "<|start|>user<|message|>hi<|end|><|start|>assistant"


def parser(
    prompt: str = PROMPT, tools: Sequence[dict[str, Any]] = (*TOOLS, {"name": "my-tool"})
) -> HarmonyParser:
    return HarmonyParser.after(prompt, Tools(tools), new_id=ids())


def read(text: str, prompt: str = PROMPT) -> Answer:
    return parsed(lambda: parser(prompt), text, n_cuts=2 if len(text) < 90 else 1)


@pytest.mark.contract("templates.harmony")
def test_analysis_is_thinking_and_final_is_the_answer() -> None:
    answer = read(
        "<|channel|>analysis<|message|>User says hi.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hi <|there!<|return|>"
    )
    assert answer == Answer("Hi <|there!", "User says hi.")


@pytest.mark.contract("templates.harmony", "chat.tool-families")
@pytest.mark.parametrize(
    "text",
    [
        '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"x": 1}<|call|>',
        '<|channel|>commentary to=functions.now<|constrain|>json<|message|>{"x": 1}',
        ' to=functions.now<|channel|>commentary json<|message|>{"x": 1}',
        '<|channel|>commentary to=now<|message|>{"x": 1}<|end|>',
        '<|channel|>analysis to=functions.now code<|message|>{"x": 1}<|call|>',
        '<|start|>assistant to=functions.now<|channel|>commentary<|message|>{"x": 1}',
    ],
)
def test_a_message_with_a_recipient_is_a_call(text: str) -> None:
    answer = read(text)
    assert answer.called == [("now", {"x": 1})]
    assert (answer.content, answer.thinking) == ("", "")
    assert answer.calls[0].id == "call_00000001"


def test_thinking_preamble_and_calls_together() -> None:
    answer = read(
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look. <|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|>"
        "<|start|>assistant<|channel|>commentary to=functions.f<|message|><|call|>"
    )
    assert (answer.content, answer.thinking) == ("I look. ", "Hm.")
    assert answer.called == [("now", {}), ("f", {})]
    assert [call.index for call in answer.calls] == [0, 1]


@pytest.mark.parametrize("everybody", ["user", "all"])
def test_a_message_to_user_or_all_is_no_call(everybody: str) -> None:
    assert read(f"<|channel|>commentary to={everybody}<|message|>{{}}<|end|>") == Answer("{}")


def test_a_changed_tool_name_is_mapped_back() -> None:
    assert read("<|channel|>commentary to=functions.my_tool<|message|>{}").names == ["my-tool"]


@pytest.mark.parametrize("body", ['{"x": 1', "[1]", "print(1)"])
def test_an_invalid_call_is_content(body: str) -> None:
    text = f"<|channel|>commentary to=functions.now<|message|>{body}<|call|>"
    assert read(text) == Answer(body)


def test_without_tools_nothing_is_called() -> None:
    text = "<|channel|>commentary to=functions.now<|message|>{}<|call|>"
    assert parsed(lambda: parser(tools=()), text, n_cuts=1) == Answer("{}")
    analysed = text.replace("commentary", "analysis")
    assert parsed(lambda: parser(tools=()), analysed, n_cuts=1) == Answer("{}")


@pytest.mark.parametrize(
    "text,content,thinking",
    [
        # Missing end tokens, and truncated or missing headers.
        ("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "b", "a"),
        ("<|channel|>analysis<|message|>a<|start|>assistant<|message|>b", "b", "a"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assi", "", "a"),
        ("<|channel|>ana", "", ""),
        ("<|channel|>analysis<|message|>a<|en", "", "a<|en"),
        ("Just an answer.", "Just an answer.", ""),
        ("<|message|>b<|return|>", "b", ""),
        ("", "", ""),
    ],
)
def test_incomplete_answers_keep_their_text(text: str, content: str, thinking: str) -> None:
    assert read(text) == Answer(content, thinking)


def test_a_prompt_may_have_begun_the_message() -> None:
    begun = PROMPT + "<|channel|>final<|message|>"
    assert open_message(begun) == Header("final")
    assert read("and so on<|return|>", begun) == Answer("and so on")
    assert read("hm<|end|>", PROMPT + "<|channel|>analysis<|message|>") == Answer("", "hm")
    assert open_message(PROMPT) is None


def test_text_is_emitted_and_possible_ends_are_held_back() -> None:
    reader = parser()
    assert reader.feed("<|channel|>analysis<|message|>so").thinking == "so"
    assert reader.feed(" be it <|e").thinking == " be it "
    assert reader.feed("h").thinking == "<|eh"


SIGNS = st.sampled_from(
    [
        *(
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|end|>",
            "<|call|>",
            "<|constrain|>",
            "json",
        ),
        *("<|return|>", "assistant", "analysis", "commentary", "final", " to=functions.now", "{}"),
        *("<", "|", "<|", ">", " ", "a", "é", "\n"),
    ]
)


@pytest.mark.contract("templates.harmony")
@given(
    text=st.lists(SIGNS, max_size=16).map("".join),
    begun=st.sampled_from(["", "<|channel|>final<|message|>", "<|channel|>analysis<|message|>"]),
    cuts=st.lists(st.integers(0, 120), max_size=6),
)
def test_any_split_parses_the_same(text: str, begun: str, cuts: list[int]) -> None:
    whole = parse(parser(PROMPT + begun), [text])
    assert parse(parser(PROMPT + begun), cut(text, cuts)) == whole
    assert parse(parser(PROMPT + begun), list(text)) == whole
