"""Answers parsed by OpenAI's own client, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from specd import core, errors
from tests.api.fakes import DONE, FakeGeneration, Script, client

CALL = core.ToolCall(id="call_1", name="add", arguments={"b": 2, "a": 1})
OTHER = core.ToolCall(id="call_2", name="now", index=1)
TURN: Any = [{"role": "user", "content": "x"}]
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

pytestmark = pytest.mark.contract("clients.openai-python")


class Answer(BaseModel):
    verdict: Literal["yes", "no"]
    certain: bool


@asynccontextmanager
async def asking(generation: FakeGeneration) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        client(generation) as http,
        openai.AsyncOpenAI(base_url=str(http.make_url("/v1")), api_key="x", max_retries=0) as api,
    ):
        yield api


@pytest.mark.contract("openai.key")
async def test_a_chat_whole_and_streamed() -> None:
    async with asking(FakeGeneration()) as api:
        whole = await api.chat.completions.create(model="plain", messages=TURN)
        assert whole.choices[0].message.content == "Hello"
        stream = await api.chat.completions.create(model="plain", messages=TURN, stream=True)
        parts = [part.choices[0].delta.content or "" async for part in stream]
        assert "".join(parts) == "Hello"
        listed = await api.models.list()
        assert listed.data[0].id == "plain:latest"
        assert (await api.models.retrieve("plain")).owned_by == "library"


async def test_tool_calls_whole_and_streamed() -> None:
    script: Script = [core.Delta(content="So"), core.Delta(tool_calls=(CALL, OTHER)), DONE]
    async with asking(FakeGeneration(script)) as api:
        asked: Any = {"model": "able", "messages": TURN, "tools": [TOOL]}
        whole = await api.chat.completions.create(**asked)
        async with api.chat.completions.stream(**asked) as stream:
            streamed = await stream.get_final_completion()
    for completion in (whole, streamed):
        choice: Any = completion.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "So"
        assert [
            (call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls
        ] == [("call_1", "add", '{"b":2,"a":1}'), ("call_2", "now", "{}")]


async def test_an_answer_follows_a_json_schema() -> None:
    generation = FakeGeneration([core.Delta(content='{"verdict":"no","certain":true}'), DONE])
    async with asking(generation) as api:
        chat = await api.chat.completions.parse(
            model="plain", messages=TURN, response_format=Answer
        )
        response = await api.responses.parse(model="plain", input="x", text_format=Answer)
    expected = Answer(verdict="no", certain=True)
    assert chat.choices[0].message.parsed == expected
    assert response.output_parsed == expected
    for request in generation.requests:
        assert request.grammar is not None
        assert request.grammar.kind is core.GrammarKind.JSON_SCHEMA
        assert '"verdict"' in request.grammar.text


async def test_completions_whole_and_streamed() -> None:
    async with asking(FakeGeneration()) as api:
        whole = await api.completions.create(model="plain", prompt="x")
        assert whole.choices[0].text == "Hello"
        stream = await api.completions.create(model="plain", prompt="x", stream=True)
        assert "".join([part.choices[0].text async for part in stream]) == "Hello"


async def test_a_response_whole_and_streamed() -> None:
    script: Script = [
        core.Delta(thinking="hm"),
        core.Delta(content="Hel"),
        core.Delta(content="lo"),
        core.Delta(tool_calls=(CALL,)),
        DONE,
    ]
    async with asking(FakeGeneration(script)) as api:
        whole = await api.responses.create(model="able", input="x")
        async with api.responses.stream(model="able", input="x") as stream:
            texts = [
                event.delta async for event in stream if event.type == "response.output_text.delta"
            ]
            streamed = await stream.get_final_response()
    assert texts == ["Hel", "lo"]
    for response in (whole, streamed):
        assert response.output_text == "Hello"
        output: list[Any] = list(response.output)
        thought, said, called = output
        assert (thought.type, said.type, called.type) == ("reasoning", "message", "function_call")
        assert (called.call_id, called.arguments) == ("call_1", '{"b":2,"a":1}')


async def test_the_output_of_a_response_can_be_sent_back() -> None:
    script: Script = [core.Delta(thinking="hm"), core.Delta(tool_calls=(CALL,)), DONE]
    generation = FakeGeneration(script)
    async with asking(generation) as api:
        response = await api.responses.create(model="able", input="x")
        items: Any = [{"role": "user", "content": "x"}, *response.output]
        items.append({"type": "function_call_output", "call_id": "call_1", "output": "3"})
        await api.responses.create(model="able", input=items)
    prompt = generation.requests[-1].prompt
    assert isinstance(prompt, core.ChatPrompt)
    assert prompt.messages == (
        core.Message(role="user", content="x"),
        core.Message(role="assistant", thinking="hm", tool_calls=(CALL,)),
        core.Message(role="tool", content="3", tool_call_id="call_1", tool_name="add"),
    )


async def test_errors_are_the_clients_own() -> None:
    async with asking(FakeGeneration()) as api:
        with pytest.raises(openai.NotFoundError, match="model 'no' not found"):
            await api.chat.completions.create(model="no", messages=TURN)
        with pytest.raises(openai.BadRequestError, match="does not support tools"):
            await api.chat.completions.create(model="plain", messages=TURN, tools=[TOOL])
        with pytest.raises(openai.BadRequestError) as caught:
            await api.responses.create(model="plain", input="x", previous_response_id="resp_1")
        assert caught.value.code == "previous_response_not_found"


async def test_an_error_in_a_stream_is_raised() -> None:
    script: Script = [core.Delta(content="a"), errors.EngineCrashed("gone")]
    async with asking(FakeGeneration(script)) as api:
        chat = await api.chat.completions.create(model="plain", messages=TURN, stream=True)
        with pytest.raises(openai.APIError, match="gone"):
            _ = [part async for part in chat]
        text = await api.completions.create(model="plain", prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="gone"):
            _ = [part async for part in text]
        response = await api.responses.create(model="plain", input="x", stream=True)
        *_, last = [event async for event in response]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.message == "gone"
