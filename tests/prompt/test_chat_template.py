"""Jinja chat templates render as their authors expect, inside a sandbox."""

from __future__ import annotations

import datetime as dt

import pytest

from specd.core import Message, ToolCall
from specd.errors import InvalidRequest, StoreError
from specd.prompt.chat_template import render_chat

USER = Message(role="user", content="Hi <b> & 日本")


def render(template: str, **options: object) -> str:
    return render_chat(template, [USER], **options)  # type: ignore[arg-type]


@pytest.mark.contract("chat.no-template")
def test_without_a_template_chatml_is_used() -> None:
    messages = [Message(role="system", content="Be brief."), Message(role="user", content="Hi")]
    assert render_chat(None, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert not render_chat(None, messages, add_generation_prompt=False).endswith("assistant\n")


@pytest.mark.contract("templates.jinja")
def test_blocks_are_trimmed_on_both_sides() -> None:
    template = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(template) == "Hi <b> & 日本\n"


@pytest.mark.contract("templates.jinja")
def test_loop_controls_work() -> None:
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )


@pytest.mark.contract("templates.jinja", "chat.key-order")
def test_tojson_keeps_unicode_and_key_order_and_escapes_nothing() -> None:
    tool = {"name": "été", "a": "<&>"}
    assert render("{{ tools[0] | tojson }}", tools=[tool]) == '{"name": "été", "a": "<&>"}'
    assert render("{{ tools | tojson(indent=1) }}", tools=[{"a": 1}]) == '[\n {\n  "a": 1\n }\n]'


@pytest.mark.contract("templates.jinja")
def test_generation_marks_are_ignored() -> None:
    assert render("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c") == "abuserc"


@pytest.mark.contract("templates.jinja")
def test_strftime_now_uses_the_given_clock() -> None:
    assert (
        render("{{ strftime_now('%d %b %Y') }}", now=lambda: dt.datetime(2026, 8, 1, tzinfo=dt.UTC))
        == "01 Aug 2026"
    )


@pytest.mark.contract("think.kwargs", "think.default-on")
def test_thinking_variables() -> None:
    template = "{{ enable_thinking }} {{ reasoning_effort }}"
    assert render(template) == "True "
    assert render(template, think=False) == "False "
    assert render(template, think="high") == "True high"


def test_bos_is_removed_if_the_tokenizer_adds_it() -> None:
    template = "{{ bos_token }}{{ bos_token }}x"
    assert render(template, bos_token="<s>") == "<s>x"
    assert render(template, bos_token="<s>", adds_bos=False) == "<s><s>x"


@pytest.mark.contract("chat.message-fields")
def test_messages_have_their_tool_calls_and_thinking() -> None:
    message = Message(
        role="assistant",
        thinking="hm",
        tool_calls=(ToolCall(name="f", arguments={"x": 1}),),
    )
    template = (
        "{{ messages[0].reasoning_content }} {{ messages[0].tool_calls[0].type }} "
        "{{ messages[0].tool_calls[0].function.arguments | tojson }} "
        "{{ messages[0].name is defined }}"
    )
    assert render_chat(template, [message]) == 'hm function {"x": 1} False'


@pytest.mark.contract("templates.bad")
@pytest.mark.parametrize(
    "template, says",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content }}", "has no element 5"),
        ("{{ 'a' + 1 }}", "str"),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set x = messages.append(1) %}", "'append' of 'list' object is unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_failing_template_gives_its_reason(template: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        render(template)


def test_a_template_with_a_syntax_error_is_damaged() -> None:
    with pytest.raises(StoreError, match="damaged: Expected an expression"):
        render("{% if %}")
