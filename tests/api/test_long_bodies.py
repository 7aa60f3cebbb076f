"""Long bodies are converted in a thread, so that other requests are answered meanwhile."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from specd.api.anthropic import convert as anthropic_convert
from specd.api.anthropic import routes as anthropic
from specd.api.body import MAX_INLINE_BYTES
from specd.api.ollama import embed_routes
from specd.api.ollama import routes as ollama
from specd.api.ollama import schema as ollama_schema
from specd.api.openai import chat, embeddings, shared_fields
from specd.api.openai.responses import route as responses
from specd.api.openai.responses import writer as responses_writer
from tests.api.fakes import FakeGeneration, client

LONG, SHORT = "A" * MAX_INLINE_BYTES, "AAAA"
Body = Callable[[str], dict[str, object]]


def openai_chat(data: str) -> dict[str, object]:
    image = {"type": "image_url", "image_url": {"url": f"data:;base64,{data}"}}
    return {"messages": [{"role": "user", "content": [image]}]}


def anthropic_messages(data: str) -> dict[str, object]:
    image = {"type": "image", "source": {"type": "base64", "data": data}}
    return {"max_tokens": 9, "messages": [{"role": "user", "content": [image]}]}


def openai_responses(data: str) -> dict[str, object]:
    image = {"type": "input_image", "image_url": f"data:;base64,{data}"}
    return {"input": [{"role": "user", "content": [image]}]}


def no_input(data: str) -> dict[str, object]:
    return {"tools": [{"type": "web_search", "note": data}], "input": []}


def ollama_chat(data: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "images": [data]}]}


def ollama_generate(data: str) -> dict[str, object]:
    return {"prompt": "x", "images": [data]}


def embedded(data: str) -> dict[str, object]:
    return {"model": "embedder", "input": [data]}


CONVERSIONS: list[tuple[str, Body, Any, str]] = [
    ("/v1/chat/completions", openai_chat, shared_fields, "decode_base64"),
    ("/v1/chat/completions", openai_chat, chat, "chat_request"),
    ("/v1/messages", anthropic_messages, anthropic_convert, "decode_base64"),
    ("/v1/messages", anthropic_messages, anthropic, "estimated_tokens"),
    ("/v1/messages/count_tokens", anthropic_messages, anthropic_convert, "decode_base64"),
    ("/v1/responses", openai_responses, shared_fields, "decode_base64"),
    ("/v1/responses", openai_responses, responses, "to_prompt"),
    ("/v1/responses", openai_responses, responses, "to_request"),
    ("/v1/responses", openai_responses, responses_writer, "usage"),
    ("/v1/responses", no_input, responses_writer, "usage"),
    ("/v1/embeddings", embedded, embeddings, "parse_texts"),
    ("/api/embed", embedded, embed_routes, "parse_texts"),
    ("/api/chat", ollama_chat, ollama_schema, "decode_base64"),
    ("/api/chat", ollama_chat, ollama, "chat_request"),
    ("/api/generate", ollama_generate, ollama, "generate_request"),
]


class Watched:
    """Records for each call of a function whether it ran on the event loop."""

    def __init__(self, patch: pytest.MonkeyPatch, room: Any, name: str) -> None:
        self.on_loop: list[bool] = []
        self._real = getattr(room, name)
        patch.setattr(room, name, self)

    def __call__(self, *args: Any) -> Any:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        return self._real(*args)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path,body,room,name", CONVERSIONS)
async def test_a_long_body_is_converted_in_a_thread_and_a_short_one_at_once(
    monkeypatch: pytest.MonkeyPatch, path: str, body: Body, room: Any, name: str, *, stream: bool
) -> None:
    watched = Watched(monkeypatch, room, name)
    async with client() as http:
        for data in (LONG, SHORT):
            sent = {"model": "able", "stream": stream} | body(data)
            async with http.post(path, json=sent) as reply:
                assert reply.status == 200, await reply.text()
                await reply.read()
    if name != "estimated_tokens" or stream:  # only a stream tells what is not counted yet
        assert watched.on_loop == [False, True]


@pytest.mark.parametrize("stream,n_echoes", [(False, 1), (True, 3)])
async def test_a_long_request_is_repeated_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, n_echoes: int, *, stream: bool
) -> None:
    watched = Watched(monkeypatch, responses_writer, "_tool")
    sent = {"model": "able", "stream": stream} | no_input(LONG) | {"input": "x"}
    async with client() as http, http.post("/v1/responses", json=sent) as reply:
        assert reply.status == 200, await reply.text()
        await reply.read()
    assert watched.on_loop == [False] * n_echoes


class Numbers(tuple[float, ...]):
    """Record the thread that reads it."""

    __slots__ = ()
    read_on_loop: ClassVar[set[bool]] = set()

    def __iter__(self) -> Iterator[float]:
        self.read_on_loop.add(threading.current_thread() is threading.main_thread())
        return super().__iter__()


@pytest.mark.parametrize(
    "path,fields",
    [
        ("/api/embed", {"input": ["x"] * 20}),
        ("/api/embeddings", {"prompt": "x"}),
        ("/v1/embeddings", {"input": ["x"] * 20}),
        ("/v1/embeddings", {"input": ["x"] * 20, "encoding_format": "base64"}),
    ],
)
@pytest.mark.parametrize("n_dimensions,on_loop", [(8, True), (10_000, False)])
async def test_many_numbers_are_normalised_in_a_thread(
    path: str, fields: dict[str, object], n_dimensions: int, *, on_loop: bool
) -> None:
    vector = Numbers([1.0] * n_dimensions)
    vector.read_on_loop.clear()
    async with (
        client(FakeGeneration(vector=vector)) as http,
        http.post(path, json={"model": "embedder"} | fields) as reply,
    ):
        assert reply.status == 200, await reply.text()
        value = await reply.json()
    assert vector.read_on_loop == {on_loop}
    [first, *_] = value.get("embeddings") or value.get("data") or [value["embedding"]]
    read = first["embedding"] if isinstance(first, dict) else first
    n_read = len(base64.b64decode(read)) // 4 if isinstance(read, str) else len(read)
    assert n_read == n_dimensions
