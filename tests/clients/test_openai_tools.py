"""The `openai` package calls tools: the daemon, a real engine, a model with scripted answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.daemon_process import running
from tests.gguf_files import OllamaStore
from tests.scripted_model import write_scripted_model

pytestmark = [pytest.mark.native, pytest.mark.contract("openai.tools")]

SUNNY = "It is sunny in Paris."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TEMPLATE = (
    "{%- for message in messages -%}"
    "<|{{ message.role }}|>{{ message.content }}"
    "{%- for call in message.tool_calls or [] -%}"
    "<tool_call>{{ call.function | tojson }}</tool_call>"
    "{%- endfor -%}"
    "{%- endfor -%}"
    "{%- if messages[-1].role == 'tool' -%}R{%- elif tools -%}C{%- else -%}A{%- endif -%}"
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
QUESTION = "What is the weather in Paris?"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    scripts = {"A": "I do not know.", "C": CALL, "R": SUNNY}
    weights = write_scripted_model(tmp_path / "speaker.gguf", scripts, TEMPLATE)
    OllamaStore(tmp_path / "models").add("speaker", weights=weights)
    async with (
        running(tmp_path) as daemon,
        openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none") as client,
    ):
        yield client


async def test_a_chat_calls_a_tool_and_uses_its_result(client: openai.AsyncOpenAI) -> None:
    function: Any = {"name": "get_weather", "parameters": PARAMETERS}
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    asked: Any = {"model": "speaker", "tools": [{"type": "function", "function": function}]}
    async with client.chat.completions.stream(messages=turns, **asked) as stream:
        choice: Any = (await stream.get_final_completion()).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city":"Paris"}')
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    told = await client.chat.completions.create(messages=[*turns, choice.message, result], **asked)
    assert told.choices[0].message.content == SUNNY
    kept = await client.chat.completions.create(messages=turns, tool_choice="none", **asked)
    assert kept.choices[0].message.content == "I do not know."


@pytest.mark.contract("openai.responses", "openai.responses-stream")
async def test_a_response_calls_a_tool_and_uses_its_result(client: openai.AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    async with client.responses.stream(model="speaker", input=items, tools=[tool]) as stream:
        output: list[Any] = list((await stream.get_final_response()).output)
    [call] = output
    assert (call.type, call.name, call.arguments) == (
        "function_call",
        "get_weather",
        '{"city":"Paris"}',
    )
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    told = await client.responses.create(
        model="speaker", input=[*items, call, result], tools=[tool]
    )
    assert told.output_text == SUNNY
