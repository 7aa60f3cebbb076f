"""The answers of `/v1/*`, field by field, also parsed by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import pytest

from specd import core, errors
from tests.api.fakes import DONE, MODIFIED, FakeGeneration, Script, client, model_ref
from tests.api.openai import asking

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "x"}]
ENTRY = core.TokenLogprob(token="a", bytes=(97,), logprob=-1.0)
WIRE_ENTRY = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
}


async def ask(generation: FakeGeneration, **body: object) -> tuple[int, Any]:
    body = {"model": "thinker", "messages": USER} | body
    return await asking.ask(generation, CHAT, body)


async def events(generation: FakeGeneration, **body: object) -> list[Any]:
    body = {"model": "thinker", "messages": USER} | body
    return await asking.stream_of(generation, CHAT, body)


@pytest.mark.contract("openai.completion")
async def test_an_answer_at_once_is_a_completion() -> None:
    script: Script = [core.Delta(thinking="hm"), core.Delta(content="a", logprobs=(ENTRY,)), DONE]
    status, answer = await ask(FakeGeneration(script), model="Thinker")
    assert status == 200
    specd, timings = answer.pop("specd"), answer.pop("timings")
    assert answer == {
        "id": "chatcmpl-42",
        "object": "chat.completion",
        "created": 1_785_585_600,
        "model": "Thinker",
        "system_fingerprint": "fp_ollama",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a", "reasoning": "hm"},
                "finish_reason": "stop",
                "logprobs": {"content": [WIRE_ENTRY]},
            }
        ],
        "usage": USAGE,
    }
    assert specd["speculation"]["drafter"] == "tiny:latest"
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (8, 6)
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (2, 3, 7)


@pytest.mark.contract("openai.stream", "think.apart")
async def test_a_stream_names_the_role_once_and_ends_in_done() -> None:
    script: Script = [
        core.Delta(thinking="hm", content="a", logprobs=(ENTRY,)),
        core.Delta(content="b"),
        DONE,
    ]
    *chunks, finish, end = await events(FakeGeneration(script))
    assert end == "[DONE]"
    assert [chunk["choices"] for chunk in chunks] == [
        [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "", "reasoning": "hm"},
                "finish_reason": None,
            }
        ],
        [
            {
                "index": 0,
                "delta": {"content": "a"},
                "finish_reason": None,
                "logprobs": {"content": [WIRE_ENTRY]},
            }
        ],
        [{"index": 0, "delta": {"content": "b"}, "finish_reason": None}],
    ]
    assert finish["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert finish["specd"]["speculation"]["state"] == "active"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["id"] for chunk in [*chunks, finish]} == {"chatcmpl-42"}


@pytest.mark.contract("openai.stream-usage")
async def test_requested_usage_is_in_a_separate_chunk() -> None:
    *_, usage, end = await events(FakeGeneration(), stream_options={"include_usage": True})
    assert (usage["choices"], usage["usage"], end) == ([], USAGE, "[DONE]")


@pytest.mark.contract("openai.stream")
async def test_an_answer_without_text_still_names_the_role() -> None:
    first, finish, _ = await events(FakeGeneration([DONE]))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert finish["choices"][0]["finish_reason"] == "stop"


@pytest.mark.contract("openai.stream-error")
async def test_an_error_in_a_stream_is_an_event_and_there_is_no_done() -> None:
    script: Script = [core.Delta(content="a"), errors.EngineCrashed("gone")]
    *_, last = await events(FakeGeneration(script))
    assert last == {"error": {"message": "gone", "type": "api_error", "param": None, "code": None}}


@pytest.mark.contract("openai.defaults", "openai.ignored", "openai.options")
async def test_options_are_those_of_ollamas_layer() -> None:
    generation = FakeGeneration()
    await ask(
        generation,
        max_tokens=5,
        seed=7,
        stop=["a", 1, "b"],
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logprobs=True,
        top_logprobs=2,
        max_completion_tokens=99,
        n=3,
    )
    await ask(generation, temperature=0, top_p=0.5, stop="end")
    first, second = generation.requests
    assert first.options == {
        "temperature": 1.0,
        "top_p": 1.0,
        "num_predict": 5,
        "seed": 7,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "stop": ("a", "b"),
    }
    assert first.n_logprobs == 2
    assert second.options == {"temperature": 0.0, "top_p": 0.5, "stop": ("end",)}
    assert second.n_logprobs is None


@pytest.mark.parametrize(
    "body, think",
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning_effort": "xhigh"}, "max"),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}, "high"),
    ],
)
@pytest.mark.contract("openai.effort")
async def test_effort_is_think(body: dict[str, object], think: object) -> None:
    generation = FakeGeneration()
    await ask(generation, **body)
    assert generation.requests[0].think == think


@pytest.mark.contract("openai.messages")
async def test_each_part_is_a_message_and_tool_answers_get_their_name() -> None:
    generation = FakeGeneration()
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    await ask(
        generation,
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "r"},
            {"role": "tool", "content": "1", "tool_call_id": "c1"},
        ],
    )
    prompt = generation.requests[0].prompt
    assert prompt == core.ChatPrompt(
        messages=(
            core.Message(role="user", content="a"),
            core.Message(role="user", content="b"),
            core.Message(
                role="assistant",
                thinking="r",
                tool_calls=(core.ToolCall(id="c1", name="f", arguments={"x": 1}),),
            ),
            core.Message(role="tool", content="1", tool_name="f", tool_call_id="c1"),
        )
    )


def part(kind: str, **fields: object) -> list[object]:
    return [{"role": "user", "content": [{"type": kind, **fields}]}]


@pytest.mark.parametrize(
    "body, status, kind, text",
    [
        ({"messages": []}, 400, "invalid_request_error", "[] is too short - 'messages'"),
        ({"model": ""}, 400, "invalid_request_error", "model is required"),
        ({"model": "no"}, 404, "not_found_error", "model 'no' not found"),
        ({"top_logprobs": 21}, 400, "invalid_request_error", "top_logprobs must be between"),
        ({"model": "plain", "reasoning_effort": "low"}, 400, "invalid_request_error", "thinking"),
        ({"reasoning_effort": "x"}, 400, "invalid_request_error", 'invalid reasoning value: "x"'),
        ({"messages": [{}]}, 400, "invalid_request_error", "invalid message content type: <nil>"),
        (
            {"messages": [{"content": 1}]},
            400,
            "invalid_request_error",
            "invalid message content type: float64",
        ),
        ({"messages": part("?")}, 400, "invalid_request_error", "invalid message format"),
        (
            {"messages": part("image_url", image_url={"url": "https://x/y.png"})},
            400,
            "invalid_request_error",
            "image URLs are not currently supported, please use base64 encoded data instead",
        ),
        (
            {"messages": part("image_url", image_url="data:image/gif;base64,AAAA")},
            400,
            "invalid_request_error",
            "invalid image input",
        ),
        (
            {"messages": part("image_url", image_url="data:;base64,AAAA")},
            400,
            "invalid_request_error",
            "Multimodal data provided, but model does not support multimodal requests.",
        ),
        (
            {"messages": [{"tool_calls": [{"function": {"arguments": "{"}}]}]},
            400,
            "invalid_request_error",
            "invalid tool call arguments",
        ),
        (
            {"messages": [{"tool_calls": [{"function": {"arguments": "[]"}}]}]},
            400,
            "invalid_request_error",
            "invalid tool call arguments",
        ),
        (
            {"messages": [{"content": ["x"]}]},
            400,
            "invalid_request_error",
            "invalid message format",
        ),
        (
            {"messages": part("image_url", image_url=5)},
            400,
            "invalid_request_error",
            "invalid image input",
        ),
        (
            {"messages": part("image_url", image_url="data:;base64,A")},
            400,
            "invalid_request_error",
            "invalid image input",
        ),
        (
            {"messages": part("input_audio", input_audio="x")},
            400,
            "invalid_request_error",
            "invalid input_audio",
        ),
        ({"temperature": "hot"}, 400, "invalid_request_error", "of type float64"),
        (
            {"tools": [{}]},
            400,
            "invalid_request_error",
            "registry.ollama.ai/library/thinker:latest does not support tools",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            400,
            "invalid_request_error",
            'invalid format: "[1]"; expected "json" or a valid JSON Schema object',
        ),
        (
            {"max_tokens": "9"},
            400,
            "invalid_request_error",
            "into Go struct field ChatCompletionRequest.max_tokens of type int",
        ),
    ],
)
@pytest.mark.contract("openai.errors", "openai.messages-refused", "openai.effort")
async def test_refusals(body: dict[str, object], status: int, kind: str, text: str) -> None:
    generation = FakeGeneration()
    got, answer = await ask(generation, **body)
    assert got == status
    assert text in answer["error"].pop("message")
    assert answer == {"error": {"type": kind, "param": None, "code": None}}
    assert not generation.requests


@pytest.mark.contract("openai.errors")
async def test_an_empty_body_is_eof() -> None:
    async with client() as http, http.post(CHAT) as reply:
        assert (reply.status, (await reply.json())["error"]["message"]) == (400, "EOF")


@pytest.mark.contract("openai.errors")
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_before_the_first_byte_has_a_status(stream: bool) -> None:
    status, answer = await ask(FakeGeneration([errors.QueueFull()]), stream=stream)
    assert (status, answer["error"]["type"]) == (503, "api_error")


@pytest.mark.contract("openai.models")
async def test_models_are_listed_with_their_owner() -> None:
    models = [model_ref("plain"), model_ref("someone/theirs:1b")]
    async with client(models=models) as http, http.get("/v1/models") as reply:
        listed = await reply.json()
    created = int(MODIFIED.timestamp())
    assert listed == {
        "object": "list",
        "data": [
            {
                "id": "plain:latest",
                "object": "model",
                "created": created,
                "owned_by": "library",
            },
            {
                "id": "someone/theirs:1b",
                "object": "model",
                "created": created,
                "owned_by": "someone",
            },
        ],
    }


@pytest.mark.contract("openai.models")
async def test_an_empty_store_has_null_data() -> None:
    async with client(models=[]) as http, http.get("/v1/models") as reply:
        assert await reply.json() == {"object": "list", "data": None}


@pytest.mark.contract("openai.model")
async def test_one_model_is_echoed_and_an_unknown_one_is_404() -> None:
    async with client() as http:
        async with http.get("/v1/models/Plain") as reply:
            assert (await reply.json())["id"] == "Plain"
        async with http.get("/v1/models/no") as reply:
            error = (await reply.json())["error"]
            assert (reply.status, error["type"]) == (404, "not_found_error")
            assert error["message"] == "model 'no:latest' not found"


@pytest.mark.contract("openai.model")
async def test_a_model_of_a_user_is_found_by_its_full_name() -> None:
    async with client(models=[model_ref("someone/theirs:1b")]) as http:
        for path in ("someone/theirs:1b", "someone%2Ftheirs:1b"):
            async with http.get(f"/v1/models/{path}") as reply:
                found = await reply.json()
            assert (found["id"], found["owned_by"]) == ("someone/theirs:1b", "someone")
        async with http.get("/v1/models/x/", allow_redirects=False) as reply:
            assert (reply.status, reply.headers["Location"]) == (301, "/v1/models/x")


async def test_a_rendered_prompt_is_shown_on_request() -> None:
    _, answer = await ask(FakeGeneration(), _debug_render_only=True)
    assert answer["_debug_info"] == {"rendered_template": "<rendered>"}
