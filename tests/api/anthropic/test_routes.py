"""The answers of `/v1/messages`, field by field."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from specd import core, errors
from tests.api.fakes import DONE, FakeGeneration, Script, client

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER = [{"role": "user", "content": "x"}]
CALL = core.ToolCall(name="look", arguments={"b": 1, "a": "<"}, id="call_1")
USAGE = {"input_tokens": 5, "output_tokens": 7}
CUT = core.Done(reason=core.StopReason.LENGTH, usage=DONE.usage, speculation=DONE.speculation)


async def ask(generation: FakeGeneration, path: str = MESSAGES, **body: object) -> tuple[int, Any]:
    body = {"model": "able", "max_tokens": 9, "messages": USER} | body
    async with client(generation) as http, http.post(path, json=body) as reply:
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
        return reply.status, await reply.json()


async def events(generation: FakeGeneration, **body: object) -> list[Any]:
    """Return the data of every event; check framing and names."""
    body = {"model": "able", "max_tokens": 9, "messages": USER, "stream": True} | body
    async with client(generation) as http, http.post(MESSAGES, json=body) as reply:
        text = await reply.text()
        assert reply.status == 200, text
        assert reply.headers["Content-Type"] == "text/event-stream"
    *framed, rest = text.split("\n\n")
    assert rest == ""
    found = []
    for event in framed:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


# --------------------------------------------------------------------------- an answer at once


@pytest.mark.contract("anthropic.answer", "anthropic.tools")
async def test_an_answer_at_once_is_a_message() -> None:
    script: Script = [
        core.Delta(thinking="hm"),
        core.Delta(content="a", tool_calls=(CALL,)),
        DONE,
    ]
    status, answer = await ask(FakeGeneration(script), model="Able")
    assert status == 200
    assert re.fullmatch("msg_[0-9a-f]{24}", answer.pop("id"))
    assert answer.pop("specd")["speculation"]["drafter"] == "tiny:latest"
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "Able",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "call_1", "name": "look", "input": {"b": 1, "a": "<"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE,
    }
    assert list(answer["content"][2]["input"]) == ["b", "a"]


@pytest.mark.contract("anthropic.answer")
@pytest.mark.parametrize(
    "script, reason",
    [([DONE], "end_turn"), ([CUT], "max_tokens"), ([core.Delta(), DONE], "end_turn")],
)
async def test_an_empty_answer_has_a_list_and_its_reason(script: Script, reason: str) -> None:
    _, answer = await ask(FakeGeneration(script))
    assert (answer["content"], answer["stop_reason"]) == ([], reason)


async def test_a_call_without_an_id_is_given_one() -> None:
    script: Script = [core.Delta(tool_calls=(core.ToolCall(name="f"),)), DONE]
    _, answer = await ask(FakeGeneration(script))
    [use] = answer["content"]
    assert re.fullmatch("toolu_[0-9a-f]{24}", use["id"])
    assert use["input"] == {}


# --------------------------------------------------------------------------- streams


@pytest.mark.contract("anthropic.stream")
async def test_a_stream_opens_and_closes_its_blocks_in_order() -> None:
    script: Script = [
        core.Delta(thinking="h"),
        core.Delta(thinking="m"),
        core.Delta(content="a"),
        core.Delta(content="b", tool_calls=(CALL, core.ToolCall(name="f", id="call_2"))),
        core.Delta(content="c"),
        DONE,
    ]
    start, *blocks, last, stop = await events(FakeGeneration(script))
    assert start["message"].pop("id").startswith("msg_")
    assert start["message"] == {
        "type": "message",
        "role": "assistant",
        "model": "able",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 0},
    }
    assert [
        (
            e["type"].removeprefix("content_block_"),
            e["index"],
            e.get("content_block", e.get("delta")),
        )
        for e in blocks
    ] == [
        ("start", 0, {"type": "thinking", "thinking": "", "signature": ""}),
        ("delta", 0, {"type": "thinking_delta", "thinking": "h"}),
        ("delta", 0, {"type": "thinking_delta", "thinking": "m"}),
        ("stop", 0, None),
        ("start", 1, {"type": "text", "text": ""}),
        ("delta", 1, {"type": "text_delta", "text": "a"}),
        ("delta", 1, {"type": "text_delta", "text": "b"}),
        ("stop", 1, None),
        ("start", 2, {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}),
        ("delta", 2, {"type": "input_json_delta", "partial_json": '{"b":1,"a":"\\u003c"}'}),
        ("stop", 2, None),
        ("start", 3, {"type": "tool_use", "id": "call_2", "name": "f", "input": {}}),
        ("delta", 3, {"type": "input_json_delta", "partial_json": "{}"}),
        ("stop", 3, None),
        ("start", 4, {"type": "text", "text": ""}),
        ("delta", 4, {"type": "text_delta", "text": "c"}),
        ("stop", 4, None),
    ]
    assert last.pop("specd")["speculation"]["state"] == "active"
    assert last == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": USAGE,
    }
    assert stop == {"type": "message_stop"}


@pytest.mark.contract("anthropic.stream")
async def test_a_stream_without_text_still_starts_and_ends() -> None:
    found = await events(FakeGeneration([CUT]))
    assert [event["type"] for event in found] == ["message_start", "message_delta", "message_stop"]
    assert found[1]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.contract("anthropic.estimate")
async def test_the_prompts_tokens_are_estimated_before_they_are_counted() -> None:
    messages = [
        {"role": "user", "content": "a" * 400},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "i", "name": "n", "input": {}}],
        },
    ]
    start, *_ = await events(FakeGeneration(), messages=messages, system="b" * 40)
    assert start["message"]["usage"]["input_tokens"] == (400 + 40 + 2) // 4


@pytest.mark.contract("anthropic.stream-error")
async def test_an_error_in_mid_stream_is_an_event_and_the_end() -> None:
    script: Script = [core.Delta(content="a"), errors.EngineCrashed("gone")]
    *_, last = await events(FakeGeneration(script))
    assert last.pop("request_id").startswith("req_")
    assert last == {"type": "error", "error": {"type": "api_error", "message": "gone"}}


async def test_a_client_that_leaves_frees_the_slot() -> None:
    waiting = asyncio.Event()
    generation = FakeGeneration([core.Delta(content="a"), waiting])
    body = {"model": "able", "max_tokens": 9, "messages": USER, "stream": True}
    async with client(generation) as http:
        async with http.post(MESSAGES, json=body) as reply:
            await reply.content.readline()
            await waiting.wait()
            reply.close()
        await generation.closed.wait()


# --------------------------------------------------------------------------- counting


@pytest.mark.contract("anthropic.count-tokens")
async def test_tokens_are_counted_of_the_same_request() -> None:
    generation = FakeGeneration()
    same: dict[str, Any] = {"system": "s", "tools": [{"name": "f", "input_schema": {}}]}
    status, answer = await ask(generation, COUNT, **same)
    assert (status, answer) == (200, {"input_tokens": 42})
    await ask(generation, **same)
    counted, answered = generation.requests
    assert counted.prompt == answered.prompt


# --------------------------------------------------------------------------- refusals


def block(kind: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [{"type": kind, **fields}]}]}


PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}


@pytest.mark.contract(
    "anthropic.errors", "anthropic.required", "anthropic.blocks", "anthropic.tools"
)
@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize(
    "body, status, kind, text",
    [
        ({"model": None}, 400, "invalid_request_error", "model is required"),
        ({"messages": None}, 400, "invalid_request_error", "messages is required"),
        ({"messages": []}, 400, "invalid_request_error", "messages is required"),
        (
            {"messages": [{"role": "user", "content": ""}]},
            400,
            "invalid_request_error",
            "messages is",
        ),
        ({"messages": "x"}, 400, "invalid_request_error", "of type []anthropic.MessageParam"),
        ({"messages": [{"content": 1}]}, 400, "invalid_request_error", "[]anthropic.ContentBlock"),
        ({"system": 1}, 400, "invalid_request_error", "system of type []anthropic.ContentBlock"),
        ({"model": "no"}, 404, "not_found_error", "model 'no' not found"),
        ({"model": "x:cloud"}, 403, "permission_error", "ollama cloud is disabled"),
        ({"model": "a b"}, 400, "invalid_request_error", "invalid model name"),
        ({"model": "embedder"}, 400, "invalid_request_error", '"embedder" does not support chat'),
        (
            {"model": "plain", "tools": [{"name": "f"}]},
            400,
            "invalid_request_error",
            "registry.ollama.ai/library/plain:latest does not support tools",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            403,
            "permission_error",
            "web search is unavailable",
        ),
        (block("image"), 400, "invalid_request_error", "invalid image source"),
        (
            block("image", source={"type": "url", "url": "https://x/y.png"}),
            400,
            "invalid_request_error",
            "invalid image source type: url. Only base64 images are supported.",
        ),
        (block("image", source={"type": "base64"}), 400, "invalid_request_error", "invalid image"),
        (
            block("image", source=PNG | {"data": "?"}),
            400,
            "invalid_request_error",
            "invalid base64 image data: illegal base64 data at input byte 0",
        ),
        (
            {"model": "plain", **block("image", source=PNG)},
            400,
            "invalid_request_error",
            "model does not support multimodal requests",
        ),
        (
            block("document", source=PNG),
            400,
            "invalid_request_error",
            "invalid document source type: base64. Only text documents are supported.",
        ),
        (
            block("tool_use", name="f"),
            400,
            "invalid_request_error",
            "tool_use block missing required 'id' field",
        ),
        (
            block("tool_use", id="i"),
            400,
            "invalid_request_error",
            "tool_use block missing required 'name' field",
        ),
    ],
)
async def test_refusals(
    path: str, body: dict[str, object], status: int, kind: str, text: str
) -> None:
    generation = FakeGeneration()
    got, answer = await ask(generation, path, **body)
    assert got == status
    assert re.fullmatch("req_[0-9a-f]{16}", answer.pop("request_id"))
    assert text in answer["error"].pop("message")
    assert answer == {"type": "error", "error": {"type": kind}}
    assert not generation.requests


@pytest.mark.contract("anthropic.required")
@pytest.mark.parametrize("sent", [None, 0, -1])
async def test_max_tokens_must_be_positive(sent: int | None) -> None:
    status, answer = await ask(FakeGeneration(), max_tokens=sent)
    assert status == 400
    assert answer["error"]["message"] == "max_tokens is required and must be positive"


@pytest.mark.contract("anthropic.errors")
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_before_the_first_byte_has_a_status(stream: bool) -> None:
    status, answer = await ask(FakeGeneration([errors.QueueFull()]), stream=stream)
    assert (status, answer["error"]["type"]) == (503, "overloaded_error")


@pytest.mark.contract("anthropic.errors")
async def test_an_empty_body_is_eof() -> None:
    async with client() as http, http.post(MESSAGES) as reply:
        assert (reply.status, (await reply.json())["error"]["message"]) == (400, "EOF")


async def test_a_body_beyond_the_limit_is_too_large() -> None:
    async with client(max_body_bytes=10) as http, http.post(MESSAGES, data="[" * 20) as reply:
        assert (reply.status, (await reply.json())["error"]["type"]) == (413, "request_too_large")
