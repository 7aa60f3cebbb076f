"""The `anthropic` Python package against the running daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from tests.daemon_process import Daemon

pytestmark = [pytest.mark.native, pytest.mark.contract("clients.anthropic-python")]

TURN: Any = [{"role": "user", "content": "Write a function add."}]


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=daemon.url, api_key="none") as client:
        yield client


@pytest.mark.contract("anthropic.count-tokens", "anthropic.answer", "anthropic.stream")
async def test_a_streamed_message_equals_the_whole_one_and_its_prompt_is_counted(
    client: anthropic.AsyncAnthropic,
) -> None:
    asked: Any = {"model": "specd-demo", "messages": TURN, "system": "Be brief."}
    counted = await client.messages.count_tokens(**asked)
    greedy: Any = asked | {"max_tokens": 24, "extra_body": {"temperature": 0}}
    whole = await client.messages.create(**greedy)
    assert whole.usage.input_tokens == counted.input_tokens
    assert whole.stop_reason in {"end_turn", "max_tokens"}
    async with client.messages.stream(**greedy) as stream:
        said = "".join([text async for text in stream.text_stream])
        message = await stream.get_final_message()
    [block] = whole.content
    assert block.type == "text"
    assert said == block.text
    assert message.usage == whole.usage
    assert message.stop_reason == whole.stop_reason


async def test_models_are_listed(client: anthropic.AsyncAnthropic) -> None:
    assert {model.id async for model in client.models.list()} == {
        "specd-demo:latest",
        "endless:latest",
    }


@pytest.mark.contract("anthropic.errors")
async def test_errors_are_raised_as_the_clients_own_classes(
    client: anthropic.AsyncAnthropic,
) -> None:
    with pytest.raises(anthropic.NotFoundError, match="model 'absent' not found"):
        await client.messages.create(model="absent", max_tokens=1, messages=TURN)
    tools: Any = [{"name": "f", "input_schema": {"type": "object"}}]
    with pytest.raises(anthropic.BadRequestError, match="does not support tools"):
        await client.messages.create(model="endless", max_tokens=1, messages=TURN, tools=tools)
