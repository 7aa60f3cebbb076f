"""The `openai` Python package against the running daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.daemon_process import Daemon

pytestmark = [pytest.mark.native, pytest.mark.contract("clients.openai-python")]

TURN: Any = [{"role": "user", "content": "Write a function add."}]


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none") as client:
        yield client


class Verdict(BaseModel):
    """All values are short, because the tiny model was not trained on JSON."""

    answer: Literal["yes", "no", "perhaps"]
    certain: bool


async def test_models_are_listed_and_a_streamed_chat_equals_the_whole_one(
    client: openai.AsyncOpenAI,
) -> None:
    assert {model.id async for model in client.models.list()} == {
        "specd-demo:latest",
        "endless:latest",
    }
    asked: Any = {"model": "specd-demo", "messages": TURN, "max_tokens": 24, "seed": 3}
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.contract("openai.max-completion-tokens")
async def test_max_completion_tokens_limits_the_answer(client: openai.AsyncOpenAI) -> None:
    cut = await client.chat.completions.create(
        model="endless", messages=TURN, max_completion_tokens=5
    )
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 5
    assert cut.choices[0].finish_reason == "length"


async def test_log_probabilities_belong_to_the_generated_tokens(
    client: openai.AsyncOpenAI,
) -> None:
    chat = await client.chat.completions.create(
        model="specd-demo", messages=TURN, max_tokens=8, logprobs=True, top_logprobs=2
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == chat.choices[0].message.content
    assert {len(entry.top_logprobs) for entry in logprobs.content} == {2}


@pytest.mark.contract("openai.formats")
async def test_an_answer_follows_a_json_schema(client: openai.AsyncOpenAI) -> None:
    chat = await client.chat.completions.parse(
        model="specd-demo", messages=TURN, response_format=Verdict, max_tokens=400, seed=1
    )
    assert isinstance(chat.choices[0].message.parsed, Verdict)
    response = await client.responses.parse(
        model="specd-demo", input="Is it so?", text_format=Verdict, max_output_tokens=400
    )
    assert isinstance(response.output_parsed, Verdict)


@pytest.mark.contract("openai.completions")
async def test_a_streamed_completion_equals_the_whole_one(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "specd-demo", "prompt": "def add(", "max_tokens": 12, "seed": 3}
    whole = await client.completions.create(**asked)
    stream = await client.completions.create(**asked, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"


@pytest.mark.contract("openai.responses", "openai.responses-stream")
async def test_a_streamed_response_equals_the_whole_one(client: openai.AsyncOpenAI) -> None:
    asked: Any = {
        "model": "specd-demo",
        "instructions": "Be brief.",
        "input": "Write a function add.",
        "max_output_tokens": 12,
        "temperature": 0,
    }
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        events: list[Any] = [event async for event in stream]
        streamed = await stream.get_final_response()
    said = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert whole.output_text == streamed.output_text == "".join(said)
    assert whole.usage is not None
    assert whole.usage.output_tokens == 12


@pytest.mark.contract("openai.errors")
async def test_an_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="model 'absent' not found"):
        await client.chat.completions.create(model="absent", messages=TURN)
    with pytest.raises(openai.NotFoundError, match="model 'absent' not found"):
        await client.completions.create(model="absent", prompt="x")
    with pytest.raises(openai.NotFoundError, match="model 'absent' not found"):
        await client.responses.create(model="absent", input="x")
    with pytest.raises(openai.NotFoundError, match="model 'absent:latest' not found"):
        await client.models.retrieve("absent")
