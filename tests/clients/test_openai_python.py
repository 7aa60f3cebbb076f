"""The `openai` Python package against the running daemon."""

from __future__ import annotations

import openai
import pytest

from tests.daemon_process import Daemon

pytestmark = pytest.mark.native


async def test_models_and_a_chat_streamed_and_whole(daemon: Daemon) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none") as client:
        assert {model.id async for model in client.models.list()} == {
            "specd-demo:latest",
            "endless:latest",
        }
        asked = {
            "model": "specd-demo",
            "messages": [{"role": "user", "content": "Write a function add."}],
            "max_tokens": 24,
            "seed": 3,
        }
        whole = await client.chat.completions.create(**asked)  # type: ignore[call-overload]
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            **asked, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_an_unknown_model_is_not_found(daemon: Daemon) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none") as client:
        with pytest.raises(openai.NotFoundError, match="model 'absent' not found"):
            await client.chat.completions.create(
                model="absent", messages=[{"role": "user", "content": "x"}]
            )
