"""Answers parsed by Anthropic's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from specd import core, errors
from tests.api.fakes import DONE, FakeGeneration, Script, client

pytestmark = pytest.mark.contract("clients.anthropic-python")

MESSAGES: Any = [{"role": "user", "content": "x"}]
TOOLS: Any = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
CALL = core.ToolCall(name="look", arguments={"at": {"x": [1, "ü"]}}, id="call_1")


@asynccontextmanager
async def api(*script: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    generation = FakeGeneration(script) if script else FakeGeneration()
    async with (
        client(generation) as http,
        anthropic.AsyncAnthropic(
            base_url=str(http.make_url("")).rstrip("/"), api_key="x", max_retries=0
        ) as found,
    ):
        yield found


SCRIPT: Script = (
    core.Delta(thinking="h"),
    core.Delta(thinking="m"),
    core.Delta(content="I "),
    core.Delta(content="look."),
    core.Delta(tool_calls=(CALL,)),
    DONE,
)


async def test_a_message_is_read_whole() -> None:
    async with api(*SCRIPT) as found:
        message = await found.messages.create(
            model="able", max_tokens=9, messages=MESSAGES, tools=TOOLS
        )
    thinking, text, use = message.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert use.type == "tool_use"
    assert use.input == {"at": {"x": [1, "ü"]}}
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == 7


async def test_a_stream_accumulates_to_the_same_message() -> None:
    async with api(*SCRIPT) as found:
        whole = await found.messages.create(model="able", max_tokens=9, messages=MESSAGES)
        async with found.messages.stream(
            model="able", max_tokens=9, messages=MESSAGES, tools=TOOLS
        ) as stream:
            said = "".join([text async for text in stream.text_stream])
            message = await stream.get_final_message()
    assert said == "I look."
    rest: Any = {"id", "specd", "content"}
    assert message.model_dump(exclude=rest) == whole.model_dump(exclude=rest)
    assert [block.model_dump(exclude={"parsed_output"}) for block in message.content] == [
        block.model_dump() for block in whole.content
    ]


async def test_an_answer_can_be_sent_back() -> None:
    generation = FakeGeneration(SCRIPT)
    async with client(generation) as http:
        url = str(http.make_url("")).rstrip("/")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="x") as found:
            first = await found.messages.create(model="able", max_tokens=9, messages=MESSAGES)
            result = {"type": "tool_result", "tool_use_id": "call_1", "content": "a tree"}
            turns: Any = [
                *MESSAGES,
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ]
            await found.messages.create(model="able", max_tokens=9, messages=turns, tools=TOOLS)
    prompt = generation.requests[1].prompt
    assert isinstance(prompt, core.ChatPrompt)
    assert prompt.messages[1:] == (
        core.Message(role="assistant", content="I look.", thinking="hm", tool_calls=(CALL,)),
        core.Message(role="tool", content="a tree", tool_name="look", tool_call_id="call_1"),
    )


async def test_errors_are_raised_as_the_clients_own_classes() -> None:
    async with api() as found:
        with pytest.raises(anthropic.NotFoundError, match="model 'no' not found"):
            await found.messages.create(model="no", max_tokens=9, messages=MESSAGES)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens is required"):
            await found.messages.create(model="able", max_tokens=0, messages=MESSAGES)
        with pytest.raises(anthropic.PermissionDeniedError, match="web search is unavailable"):
            await found.messages.create(
                model="able",
                max_tokens=9,
                messages=MESSAGES,
                tools=[{"type": "web_search_20250305", "name": "web_search"}],
            )
    async with api(errors.QueueFull()) as found:
        with pytest.raises(anthropic.InternalServerError, match="server busy"):
            await found.messages.create(model="able", max_tokens=9, messages=MESSAGES)


async def test_an_error_in_mid_stream_is_raised() -> None:
    async with api(core.Delta(content="a"), errors.EngineCrashed("gone")) as found:
        stream = await found.messages.create(
            model="able", max_tokens=9, messages=MESSAGES, stream=True
        )
        for kind in ("message_start", "content_block_start", "content_block_delta"):
            assert (await anext(stream)).type == kind
        with pytest.raises(anthropic.APIStatusError, match="gone"):
            await anext(stream)


async def test_tokens_are_counted() -> None:
    async with api() as found:
        counted = await found.messages.count_tokens(model="able", messages=MESSAGES)
        assert counted.input_tokens == 42


async def test_what_a_coding_agent_sends_passes() -> None:
    """System blocks with cache marks, many tools, metadata, beta headers and `?beta=true`."""
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"path": {"type": "string"}, "edits": {"type": "array", "items": {}}},
        "required": ["path"],
        "additionalProperties": False,
    }
    tools = [
        {"name": f"tool_{n}", "description": "d" * 4000, "input_schema": schema} for n in range(40)
    ]
    async with api(*SCRIPT) as found:
        asked: Any = {
            "model": "able",
            "max_tokens": 32000,
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"},
                {"type": "text", "text": "You are an agent.", **cached},
            ],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "<system-reminder>…</system-reminder>"},
                        {"type": "text", "text": "fix it", **cached},
                    ],
                }
            ],
            "tools": [*tools[:-1], {**tools[-1], **cached}],
            "metadata": {"user_id": "user_1_account__session_2"},
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
            "output_config": {"effort": "high"},
        }
        async with found.beta.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
        assert message.stop_reason == "tool_use"
        asked.pop("max_tokens")
        asked.pop("metadata")
        counted = await found.beta.messages.count_tokens(**asked)
        assert counted.input_tokens == 42
