"""Tools, formats, images and the two fields that Ollama ignores, at `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from specd import core
from tests.api.fakes import DONE, FakeGeneration, Script, client
from tests.api.openai.asking import ask, stream_of

CHAT = "/v1/chat/completions"
CALL = core.ToolCall(id="call_1", name="add", arguments={"b": 2, "a": "<é>"}, index=0)
OTHER = core.ToolCall(id="call_2", name="now", index=1)
WIRE_CALL = {
    "id": "call_1",
    "index": 0,
    "type": "function",
    "function": {"name": "add", "arguments": '{"b":2,"a":"<é>"}'},
}
WIRE_OTHER = {
    "id": "call_2",
    "index": 1,
    "type": "function",
    "function": {"name": "now", "arguments": "{}"},
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}


def body(**fields: object) -> dict[str, object]:
    return {"model": "able", "messages": [{"role": "user", "content": "x"}]} | fields


async def asked(**fields: object) -> core.GenerateRequest:
    generation = FakeGeneration()
    status, answer = await ask(generation, CHAT, body(**fields))
    assert status == 200, answer
    return generation.requests[0]


# --------------------------------------------------------------------------- answers


@pytest.mark.contract("openai.tools", "openai.finish-reason")
async def test_tool_calls_of_a_whole_answer() -> None:
    script: Script = [core.Delta(thinking="hm", tool_calls=(CALL, OTHER)), DONE]
    _, answer = await ask(FakeGeneration(script), CHAT, body(tools=[TOOL]))
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "",
                "reasoning": "hm",
                "tool_calls": [WIRE_CALL, WIRE_OTHER],
            },
            "finish_reason": "tool_calls",
        }
    ]


@pytest.mark.contract("openai.tools")
async def test_tool_calls_are_streamed_whole_in_one_delta() -> None:
    script: Script = [
        core.Delta(thinking="hm", tool_calls=(CALL,)),
        core.Delta(content="so", tool_calls=(OTHER,)),
        DONE,
    ]
    *chunks, finish, end = await stream_of(FakeGeneration(script), CHAT, body(tools=[TOOL]))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "", "reasoning": "hm"},
        {"content": "", "tool_calls": [WIRE_CALL]},
        {"content": "so", "tool_calls": [WIRE_OTHER]},
    ]
    assert finish["choices"] == [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]
    assert end == "[DONE]"


@pytest.mark.contract("openai.finish-reason")
async def test_a_call_sets_the_finish_reason_even_before_text() -> None:
    script: Script = [core.Delta(tool_calls=(CALL,)), core.Delta(content="so"), DONE]
    *_, finish, _ = await stream_of(FakeGeneration(script), CHAT, body(tools=[TOOL]))
    assert finish["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.contract("openai.finish-reason")
@pytest.mark.parametrize("reason", list(core.StopReason))
async def test_the_reason_to_stop_is_ollamas(reason: core.StopReason) -> None:
    done = core.Done(reason=reason, usage=DONE.usage, speculation=DONE.speculation)
    _, answer = await ask(FakeGeneration([core.Delta(content="a"), done]), CHAT, body())
    assert answer["choices"][0]["finish_reason"] == reason.value
    *_, finish, _ = await stream_of(FakeGeneration([core.Delta(content="a"), done]), CHAT, body())
    assert finish["choices"][0]["finish_reason"] == reason.value


# --------------------------------------------------------------------------- requests


@pytest.mark.contract("openai.ignored")
async def test_tools_are_handed_on_as_they_came() -> None:
    request = await asked(tools=[TOOL], tool_choice="required")
    assert isinstance(request.prompt, core.ChatPrompt)
    assert request.prompt.tools == (TOOL,)


@pytest.mark.contract("openai.ignored")
async def test_tool_choice_none_removes_the_tool() -> None:
    generation = FakeGeneration()
    fields = body(model="plain", tools=[TOOL], tool_choice="none")
    status, _ = await ask(generation, CHAT, fields)
    assert status == 200
    assert isinstance(generation.requests[0].prompt, core.ChatPrompt)
    assert generation.requests[0].prompt.tools == ()


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
JSON = core.Grammar(kind=core.GrammarKind.JSON)
JSON_SCHEMA = core.Grammar(kind=core.GrammarKind.JSON_SCHEMA, text=json.dumps(SCHEMA))


@pytest.mark.parametrize(
    "sent,grammar",
    [
        (None, None),
        ({}, None),
        ({"type": "text"}, None),
        ({"type": " JSON_object "}, JSON),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, JSON_SCHEMA),
        ({"type": "json_schema", "json_schema": {"schema": "json"}}, JSON),
        ({"type": "json_schema", "json_schema": {"schema": None}}, None),
        ({"type": "json_schema"}, None),
    ],
)
@pytest.mark.contract("openai.formats")
async def test_a_format_is_a_grammar(sent: object, grammar: core.Grammar | None) -> None:
    assert (await asked(response_format=sent)).grammar == grammar


@pytest.mark.parametrize(
    "limits,expected",
    [
        ({"max_completion_tokens": 9}, 9),
        ({"max_completion_tokens": 9, "max_tokens": 5}, 5),
        ({"max_completion_tokens": 0}, None),
        ({"max_completion_tokens": -1}, None),
        ({"max_completion_tokens": "9"}, None),
        ({"max_completion_tokens": True}, None),
        ({"max_completion_tokens": 10**30}, None),
    ],
)
@pytest.mark.contract("openai.max-completion-tokens")
async def test_max_completion_tokens_counts_without_max_tokens(
    limits: dict[str, object], expected: int | None
) -> None:
    assert (await asked(**limits)).options.get("num_predict") == expected


@pytest.mark.contract("openai.messages")
async def test_a_developer_is_the_system() -> None:
    request = await asked(messages=[{"role": "Developer", "content": "d"}])
    assert isinstance(request.prompt, core.ChatPrompt)
    assert request.prompt.messages == (core.Message(role="system", content="d"),)


@pytest.mark.contract("openai.images", "openai.messages")
async def test_an_image_becomes_a_separate_message() -> None:
    text = {"type": "text", "text": "what?"}
    request = await asked(messages=[{"role": "user", "content": [PNG, text]}])
    assert isinstance(request.prompt, core.ChatPrompt)
    assert request.prompt.messages == (
        core.Message(role="user", images=(b"\x89PNG\r",)),
        core.Message(role="user", content="what?"),
    )


@pytest.mark.parametrize("sent", ["", "null", "{}"])
async def test_a_call_without_arguments_has_none(sent: str) -> None:
    call = {"id": "c", "function": {"name": "now", "arguments": sent}}
    request = await asked(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert isinstance(request.prompt, core.ChatPrompt)
    assert request.prompt.messages[0].tool_calls == (core.ToolCall(id="c", name="now"),)


@pytest.mark.contract("openai.images")
async def test_a_sound_reaches_a_model_that_sees() -> None:
    sound: Any = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    request = await asked(messages=[{"role": "user", "content": [sound]}])
    assert isinstance(request.prompt, core.ChatPrompt)
    assert request.prompt.messages[0].images == (b"\0\0\0",)


@pytest.mark.contract("sched.leave")
async def test_a_client_that_leaves_frees_its_slot() -> None:
    waiting = asyncio.Event()
    generation = FakeGeneration([core.Delta(content="a"), waiting])
    async with client(generation) as http:
        async with http.post(CHAT, json=body(stream=True)) as reply:
            await reply.content.readany()
            await waiting.wait()
            reply.close()
        await generation.closed.wait()
