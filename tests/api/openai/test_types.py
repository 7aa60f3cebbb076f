"""All answers match the types of OpenAI's own package strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from specd import core, errors
from tests.api.fakes import DONE, FakeGeneration, Script, client
from tests.api.openai.asking import ask, stream_of

TOP = core.TopLogprob(token="b", bytes=(98,), logprob=-2.0)
ENTRIES = (
    core.TokenLogprob(token="a", bytes=(97,), logprob=-1.0, top=(TOP,)),
    core.TokenLogprob(token="", bytes=(), logprob=float("-inf")),
)
CALL = core.ToolCall(id="call_1", name="add", arguments={"b": 2, "a": 1})
CUT = core.Done(reason=core.StopReason.LENGTH, usage=DONE.usage, speculation=DONE.speculation)

SCRIPTS: dict[str, Script] = {
    "text": [core.Delta(content="a"), core.Delta(content="b"), DONE],
    "nothing": [DONE],
    "cut": [core.Delta(content="a"), CUT],
    "thinking": [core.Delta(thinking="hm"), core.Delta(thinking="m", content="a"), DONE],
    "calls": [core.Delta(content="a", tool_calls=(CALL,)), core.Delta(tool_calls=(CALL,)), DONE],
    "logprobs": [core.Delta(content="a", logprobs=ENTRIES), DONE],
}
CHAT = {"model": "able", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "able", "prompt": "x"}
RESPONSE: dict[str, Any] = {
    "model": "able",
    "input": "x",
    "instructions": "y",
    "max_output_tokens": 9,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "tools": [
        {"type": "function", "name": "f"},
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [{"type": "function", "name": "g"}],
        },
        {"type": "web_search"},
    ],
}
#: What specd adds, then what Ollama does; `name` is in the types of other versions.
ADDED = {"specd", "timings", "reasoning", "presence_penalty", "frequency_penalty", "store", "name"}

scripts = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)


def fit(model: type[BaseModel], value: Any) -> None:
    found = model.model_validate_json(json.dumps(value), strict=True)
    assert set(found.model_extra or ()) <= ADDED


@scripts
async def test_chat_completions(script: Script) -> None:
    _, whole = await ask(FakeGeneration(script), "/v1/chat/completions", CHAT)
    fit(ChatCompletion, whole)


@scripts
async def test_chat_completion_chunks(script: Script) -> None:
    body = CHAT | {"stream_options": {"include_usage": True}}
    *chunks, _ = await stream_of(FakeGeneration(script), "/v1/chat/completions", body)
    for chunk in chunks:
        fit(ChatCompletionChunk, chunk)


@scripts
async def test_text_completions(script: Script) -> None:
    _, whole = await ask(FakeGeneration(script), "/v1/completions", TEXT)
    fit(Completion, whole)


@scripts
async def test_text_completion_chunks(script: Script) -> None:
    body = TEXT | {"stream_options": {"include_usage": True}}
    *chunks, _ = await stream_of(FakeGeneration(script), "/v1/completions", body)
    *unfinished, finish, usage = chunks
    for chunk in unfinished:
        # The type has no null here, OpenAI's own service sends it all the same.
        assert chunk["choices"][0].pop("finish_reason") is None
        fit(Completion, chunk | {"choices": [chunk["choices"][0] | {"finish_reason": "stop"}]})
    fit(Completion, finish)
    fit(Completion, usage)


@scripts
async def test_responses(script: Script) -> None:
    _, whole = await ask(FakeGeneration(script), "/v1/responses", RESPONSE)
    fit(Response, whole)


@scripts
@pytest.mark.parametrize("broken", [False, True])
async def test_response_events(script: Script, broken: bool) -> None:
    if broken:
        script = [core.Delta(content="a"), *script[:-1], errors.EngineCrashed("gone")]
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in await stream_of(FakeGeneration(script), "/v1/responses", RESPONSE):
        found = adapter.validate_json(json.dumps(event), strict=True)
        assert found.type == event["type"]
        assert set(found.model_extra or ()) <= ADDED


async def test_models() -> None:
    async with client() as http:
        async with http.get("/v1/models") as reply:
            listed = await reply.json()
        async with http.get("/v1/models/able") as reply:
            fit(Model, await reply.json())
    for model in listed["data"]:
        fit(Model, model)
