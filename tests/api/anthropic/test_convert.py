"""Conversion of bodies: messages, tools, options, thinking."""

from __future__ import annotations

from typing import Any

import pytest

from specd import core
from tests.api.fakes import FakeGeneration, client

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}
DATA = {"type": "base64", "media_type": "image/png", "data": "AAAA"}


async def asked(*content: object, **body: object) -> core.GenerateRequest:
    """Return the generation request for one user turn, or for `messages`."""
    messages = [{"role": "User", "content": list(content)}]
    body = {"model": "able", "max_tokens": 9, "messages": messages} | body
    generation = FakeGeneration()
    async with client(generation) as http, http.post("/v1/messages", json=body) as reply:
        assert reply.status == 200, await reply.text()
    [request] = generation.requests
    return request


async def turns(*messages: object, **body: object) -> tuple[core.Message, ...]:
    prompt = (await asked(messages=list(messages), **body)).prompt
    assert isinstance(prompt, core.ChatPrompt)
    return prompt.messages


def text(said: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": said, **more}


@pytest.mark.contract("anthropic.system")
@pytest.mark.parametrize(
    "system, first",
    [
        ("Be brief.", "Be brief."),
        ([text("Be "), text("brief.", cache_control={"type": "ephemeral"})], "Be brief."),
    ],
)
async def test_a_system_text_comes_first(system: object, first: str) -> None:
    user = {"role": "user", "content": "x"}
    assert await turns(user, system=system) == (
        core.Message(role="system", content=first),
        core.Message(role="user", content="x"),
    )


@pytest.mark.contract("anthropic.system")
@pytest.mark.parametrize("system", ["", [], None])
async def test_an_empty_system_text_is_not_a_message(system: object) -> None:
    assert len(await turns({"role": "user", "content": "x"}, system=system)) == 1


@pytest.mark.contract("anthropic.blocks")
async def test_blocks_of_one_turn_are_one_message() -> None:
    image = {"type": "image", "source": DATA}
    document = {"type": "document", "source": {"type": "text", "data": "d"}, "title": "t"}
    request = await asked(text("a"), image, text("b"), document, {"type": "unheard", "source": "u"})
    assert request.prompt == core.ChatPrompt(
        messages=(core.Message(role="user", content="abd", images=(b"\0\0\0",)),)
    )


@pytest.mark.contract("anthropic.blocks", "anthropic.tools")
async def test_calls_and_their_answers_are_turns_with_their_names() -> None:
    said = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        text("I look."),
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"z": 1, "y": 2}},
        {"type": "tool_use", "id": "c2", "name": "hear", "input": {}},
    ]
    heard = [
        text("And?"),  # the answers come first, wherever they stand
        {"type": "tool_result", "tool_use_id": "c2", "content": "boo", "is_error": True},
        {
            "type": "tool_result",
            "tool_use_id": "c1",
            "content": [text("see"), text("n"), {"type": "image", "source": DATA}, "?"],
        },
        {"type": "tool_result", "tool_use_id": "c3"},
    ]
    assert await turns(
        {"role": "assistant", "content": said}, {"role": "user", "content": heard}
    ) == (
        core.Message(
            role="assistant",
            content="I look.",
            thinking="hm",
            tool_calls=(
                core.ToolCall(name="look", arguments={"z": 1, "y": 2}, id="c1"),
                core.ToolCall(name="hear", id="c2", index=1),
            ),
        ),
        core.Message(role="tool", content="boo", tool_name="hear", tool_call_id="c2"),
        core.Message(
            role="tool", content="seen", images=(b"\0\0\0",), tool_name="look", tool_call_id="c1"
        ),
        core.Message(role="tool", tool_call_id="c3"),
        core.Message(role="user", content="And?"),
    )


@pytest.mark.contract("anthropic.blocks")
async def test_an_earlier_web_search_stays_in_the_conversation() -> None:
    found = [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "?"}]
    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    said = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": found},
        text("T says so."),
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": error},
    ]
    call = core.ToolCall(name="web_search", arguments={"query": "q"}, id="s1")
    answer = core.Message(
        role="tool", content="- T: u\n", tool_name="web_search", tool_call_id="s1"
    )
    assert (await turns({"role": "assistant", "content": said}))[:3] == (
        core.Message(role="assistant", tool_calls=(call,)),
        answer,
        core.Message(role="assistant", content="T says so."),
    )


@pytest.mark.contract("anthropic.system")
async def test_a_system_turn_in_the_conversation_is_passed_on() -> None:
    said = await turns({"role": "user", "content": "a"}, {"role": "system", "content": "b"})
    assert [turn.role for turn in said] == ["user", "system"]


@pytest.mark.contract("anthropic.tools")
async def test_tools_get_openais_shape_and_keep_the_order_of_their_keys() -> None:
    tools = [
        {"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA, "strict": True},
        {"type": "bash_20250124", "name": "bash"},
    ]
    request = await asked(text("x"), tools=tools, tool_choice={"type": "any"})
    assert isinstance(request.prompt, core.ChatPrompt)
    assert request.prompt.tools == (
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": SCHEMA},
        },
        {
            "type": "function",
            "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}},
        },
    )
    parameters: Any = request.prompt.tools[0]["function"]
    assert list(parameters["parameters"]["properties"]) == ["b", "a"]


@pytest.mark.contract("anthropic.tools")
async def test_tool_choice_none_removes_the_tools() -> None:
    tools = [{"name": "f", "input_schema": SCHEMA}]
    request = await asked(text("x"), model="plain", tools=tools, tool_choice={"type": "none"})
    assert isinstance(request.prompt, core.ChatPrompt)
    assert request.prompt.tools == ()


@pytest.mark.contract("anthropic.options")
async def test_options_are_those_that_were_sent() -> None:
    first = await asked(text("x"))
    assert first.options == {"num_predict": 9}
    second = await asked(
        text("x"), temperature=0, top_p=0.5, top_k=3, stop_sequences=["a", "b"], metadata={"u": 1}
    )
    assert second.options == {
        "num_predict": 9,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "stop": ("a", "b"),
    }


@pytest.mark.contract("anthropic.thinking")
@pytest.mark.parametrize(
    "body, think",
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"output_config": {"effort": "xhigh"}}, "high"),
        ({"output_config": {"effort": " Max "}}, "max"),
        ({"output_config": {"effort": "?"}}, None),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "enabled"}}, "low"),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "disabled"}}, False),
    ],
)
async def test_thinking_and_effort(body: dict[str, object], think: object) -> None:
    assert (await asked(text("x"), **body)).think == think
    # On a model that cannot think it is dropped without a word; off is off.
    assert (await asked(text("x"), model="plain", **body)).think == (
        False if think is False else None
    )
