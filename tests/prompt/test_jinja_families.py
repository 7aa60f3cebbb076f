"""Small versions of the families' templates, and the message format that each gets."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from specd.core import Message, ToolCall
from specd.errors import InvalidRequest
from specd.prompt.chat_template import render_chat
from specd.prompt.template_needs import TemplateNeeds, probe_template

NOW = dt.datetime(2026, 8, 1, tzinfo=dt.UTC)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

SYSTEM = Message(role="system", content="Be brief.")
USER = Message(role="user", content="Hi")
CALL = Message(role="assistant", tool_calls=(ToolCall(name="f", arguments={"é": 1, "a": "x"}),))
RESULT = Message(role="tool", content="42")
ANSWER = Message(role="assistant", content="Yes", thinking="hm")

FOLDER = Path(__file__).parent / "templates"
HERMES, LLAMA_3, MISTRAL, DEEPSEEK, GPT_OSS, GEMMA_2, PARTS = (
    (FOLDER / f"{name}.jinja").read_text().removesuffix("\n")
    for name in ("hermes", "llama_3", "mistral", "deepseek", "gpt_oss", "gemma_2", "parts")
)
PRINTED = (
    "{% for m in messages %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments }}{% endfor %}{% endfor %}"
)


def render(template: str, *messages: Message, **options: Any) -> str:
    return render_chat(template, messages, now=lambda: NOW, adds_bos=False, **options)


@pytest.mark.contract("templates.jinja")
@pytest.mark.parametrize(
    "template,shape",
    [
        (HERMES, TemplateNeeds()),
        (LLAMA_3, TemplateNeeds()),
        (MISTRAL, TemplateNeeds()),
        (DEEPSEEK, TemplateNeeds(text_arguments=True, null_content=True)),
        (GPT_OSS, TemplateNeeds()),
        (GEMMA_2, TemplateNeeds(system=False)),
        (PARTS, TemplateNeeds(typed=True)),
        ("{{ raise_exception('never') }}", TemplateNeeds()),
        (PRINTED, TemplateNeeds(text_arguments=True)),
    ],
    ids=["hermes", "llama", "mistral", "deepseek", "gpt-oss", "gemma", "parts", "never", "printed"],
)
def test_probing_finds_the_message_format(template: str, shape: TemplateNeeds) -> None:
    assert probe_template(template) == shape


@pytest.mark.contract("templates.jinja")
def test_hermes() -> None:
    text = render(HERMES, SYSTEM, USER, CALL, RESULT, tools=[TOOL])
    assert text == (
        '<s>Be brief.\n{"type": "function", "function": {"name": "f",'
        ' "parameters": {"type": "object"}}}</s><user>Hi<a>'
        '<tool_call>\n{"name": "f", "arguments": {"é": 1, "a": "x"}}\n</tool_call>'
        "<tool_response>42</tool_response><a>"
    )
    assert render(HERMES, USER, ANSWER, USER) == "<user>Hi<a>Yes<user>Hi<a>"
    assert render(HERMES, SYSTEM, USER, think=False) == (
        "<system>Be brief.<user>Hi<a><think></think>"
    )


@pytest.mark.contract("templates.jinja")
def test_llama() -> None:
    assert render(LLAMA_3, SYSTEM, USER, CALL, RESULT, bos_token="<b>") == (
        '<b><s>01 Aug 2026Be brief.<user>Hi{"name": "f", "parameters": {"é": 1, "a": "x"}}'
        '<ipython>"42"<assistant>'
    )
    tool = '{\n    "a": 1\n}'
    assert render(LLAMA_3, USER, tools=[{"a": 1}]) == f"<s>01 Aug 2026{tool}<user>Hi<assistant>"


@pytest.mark.contract("templates.jinja")
def test_mistral_gets_short_ids_and_alternating_roles() -> None:
    called = '[{"name": "f", "arguments": {"é": 1, "a": "x"}, "id": "call00001"}]'
    wanted = f"[INST]Hi[/INST][TOOL_CALLS]{called}[TOOL_RESULTS]42 call00001[/TOOL_RESULTS]"
    assert render(MISTRAL, USER, CALL, RESULT) == wanted
    long = Message(
        role="assistant",
        tool_calls=(
            ToolCall(name="f", arguments=CALL.tool_calls[0].arguments, id="call_abcdefgh"),
        ),
    )
    result = Message(role="tool", content="42", tool_call_id="call_abcdefgh")
    assert render(MISTRAL, USER, long, result) == wanted
    parts = (USER, Message(role="user", content="there"))
    assert render(MISTRAL, *parts) == "[INST]Hi\n\nthere[/INST]"
    assert (
        render(MISTRAL, USER, ANSWER, SYSTEM, USER)
        == "[INST]Hi[/INST]Yes</s>[INST]Be brief. Hi[/INST]"
    )


@pytest.mark.contract("templates.jinja")
def test_deepseek_gets_text_arguments_and_null_content() -> None:
    assert render(DEEPSEEK, SYSTEM, USER, CALL, RESULT) == (
        'Be brief.<U>Hi<A><call>f\n```json\n{"é": 1, "a": "x"}\n```<O>42<A><think>\n'
    )


@pytest.mark.contract("templates.jinja")
def test_gpt_oss() -> None:
    text = render(GPT_OSS, SYSTEM, USER, CALL, RESULT, think="high", tools=[TOOL])
    assert text == (
        "<|start|>system<|message|>Current date: 2026-08-01 Reasoning: high<|end|>"
        "<|start|>developer<|message|>Be brief.type f = ();<|end|><|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
        '{"é": 1, "a": "x"}<|call|><|start|>functions.f to=assistant<|message|>"42"<|end|>'
        "<|start|>assistant"
    )
    assert "Reasoning: medium" in render(GPT_OSS, USER)


@pytest.mark.contract("templates.jinja")
def test_gemma_gets_the_system_text_in_the_user_message() -> None:
    assert render(GEMMA_2, SYSTEM, USER) == "<turn>user\nBe brief.\nHi</turn>\n<turn>model\n"
    assert render(GEMMA_2, SYSTEM) == "<turn>user\nBe brief.</turn>\n<turn>model\n"
    text = render(GEMMA_2, USER, ANSWER, SYSTEM, USER)
    assert text.endswith("<turn>user\nBe brief.\nHi</turn>\n<turn>model\n")


@pytest.mark.contract("templates.jinja")
def test_content_may_be_a_list_of_parts() -> None:
    assert render(PARTS, SYSTEM, USER) == "<system>Be brief.<user>Hi"


@pytest.mark.contract("templates.bad")
def test_a_refusal_has_the_templates_own_message() -> None:
    with pytest.raises(InvalidRequest, match=r"^chat template: roles must alternate$"):
        render(MISTRAL, USER, ANSWER, Message(role="critic", content="x"))
    with pytest.raises(InvalidRequest, match="no call before"):
        render(GPT_OSS, USER, RESULT)


def test_the_model_continues_a_final_assistant_message() -> None:
    begun = Message(role="assistant", content="Yes, b")
    assert render(HERMES, USER, begun) == "<user>Hi<a><think></think>Yes, b"
    assert render(GEMMA_2, USER, begun) == "<turn>user\nHi</turn>\n<turn>model\nYes, b"
    assert render(HERMES, USER, begun, add_generation_prompt=False) == "<user>Hi<a>Yes, b"
    always = DEEPSEEK + "{# <think> </think> #}"
    assert render(always, USER, ANSWER) == "<U>Hi<A><think>\nhm</think>\n\nYes"


def test_granite_and_deepseek_get_their_own_thinking_variable() -> None:
    template = "{% if thinking %}think {% endif %}{{ messages[0].content }}"
    assert render(template, USER) == "think Hi"
    assert render(template, USER, think=False) == "Hi"
