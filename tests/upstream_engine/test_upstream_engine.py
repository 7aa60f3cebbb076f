"""A second kind of engine behind the same daemon, without a change above `runner`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from specd.daemon.app import build_services, start_services
from specd.settings import Settings
from tests.daemon_process import FAKE_ENGINE
from tests.gguf_files import OllamaStore, write_llama
from tests.upstream_engine.engine import HttpUpstream
from tests.upstream_engine.server import EchoServer

CHAT = {"model": "parrot", "messages": [{"role": "user", "content": "one two"}]}


@dataclass
class Served:
    """A daemon with a local model `m` and the upstream model `parrot`."""

    http: TestClient[Any, Any]
    server: EchoServer
    upstream: HttpUpstream
    stop: Callable[[], Awaitable[None]]

    async def post(self, path: str, **body: object) -> tuple[int, list[Any]]:
        async with self.http.post(path, json=body) as reply:
            text = await reply.text()
            lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
            return reply.status, [json.loads(line) for line in lines if line != "[DONE]"]

    async def loaded(self) -> list[Any]:
        async with self.http.get("/api/ps") as reply:
            models: list[Any] = (await reply.json())["models"]
            return models


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    OllamaStore(tmp_path / "models").add("m", weights=write_llama(tmp_path / "m.gguf"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("SPECD_STATE_DIR", str(tmp_path / "state"))
    server = EchoServer()
    async with TestServer(server.app()) as remote:
        upstream = HttpUpstream(str(remote.make_url("")).rstrip("/"))
        services = await build_services(Settings(), FAKE_ENGINE, [upstream])
        await start_services(services, asyncio.Event())
        async with TestClient(TestServer(services.app)) as http:
            yield Served(http, server, upstream, services.scheduler.stop)
        await services.scheduler.stop()
        await services.history_writer.close()
        await asyncio.to_thread(services.renderer.close)
        await asyncio.gather(*services.background_tasks, return_exceptions=True)


async def test_it_streams_ollamas_chats(served: Served) -> None:
    status, lines = await served.post("/api/chat", **CHAT, options={"temperature": 0.25})
    assert status == 200
    assert "".join(line["message"]["content"] for line in lines) == "one two "
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"]) == ("stop", 2)
    assert served.server.requests == [
        {"model": "parrot-70b", "messages": CHAT["messages"], "temperature": 0.25}
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_it_answers_openais_chats(served: Served, stream: bool) -> None:
    status, events = await served.post("/v1/chat/completions", **CHAT, stream=stream)
    assert status == 200
    part = "delta" if stream else "message"
    contents = [event["choices"][0][part].get("content", "") for event in events]
    assert "".join(contents) == "one two "


async def test_it_answers_anthropics_messages_and_a_plain_prompt(served: Served) -> None:
    status, [answer] = await served.post("/v1/messages", **CHAT, max_tokens=9)
    assert (status, answer["content"][0]["text"]) == (200, "one two ")
    fields = {"model": "parrot", "prompt": "hello you", "system": "be brief", "stream": False}
    status, [answer] = await served.post("/api/generate", **fields)
    assert (status, answer["response"]) == (200, "hello you ")
    assert [m["role"] for m in served.server.requests[-1]["messages"]] == ["system", "user"]


async def test_ps_shows_it_beside_local_models_and_tags_lists_it(served: Served) -> None:
    await served.post("/api/chat", **CHAT)
    await served.post("/api/generate", model="m", prompt="x", stream=False)
    [local, remote] = sorted(await served.loaded(), key=lambda model: model["name"])
    assert (local["name"], remote["name"]) == ("m:latest", "parrot:latest")
    assert (remote["size"], remote["size_vram"], remote["context_length"]) == (0, 0, 8192)
    assert remote["specd"]["device"] == "echo"
    assert remote["specd"]["reason"] == "upstream_engine"
    async with served.http.get("/api/tags") as reply:
        listed = {model["name"]: model for model in (await reply.json())["models"]}
    assert listed["parrot:latest"]["remote_model"] == "parrot-70b"
    assert "remote_model" not in listed["m:latest"]


async def test_keep_alive_and_unload_end_its_use(served: Served) -> None:
    await served.post("/api/chat", **CHAT, keep_alive=0)
    assert await served.loaded() == []
    assert served.upstream.n_stopped == 1
    await served.post("/api/chat", **CHAT, keep_alive="1h")
    assert len(served.upstream.started) == 2
    status, _ = await served.post("/api/chat", model="parrot", messages=[], keep_alive=0)
    assert (status, await served.loaded()) == (200, [])
    assert served.upstream.n_stopped == 2


async def test_it_neither_waits_for_a_local_model_nor_unloads_one(served: Served) -> None:
    """OLLAMA_MAX_LOADED_MODELS counts models in memory; an upstream one has none here."""
    async with served.http.post("/api/generate", json={"model": "m", "prompt": "hang"}) as hangs:
        await hangs.content.readline()
        assert (await served.post("/api/chat", **CHAT))[0] == 200
        assert len(await served.loaded()) == 2


async def test_a_stop_ends_answers_with_an_error(served: Served) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "hang"}]}
    async with served.http.post("/api/chat", json=body) as reply:
        await reply.content.readline()
        await served.stop()
        assert json.loads(await reply.content.readline()) == {"error": "the engine is stopping"}


async def test_an_answer_gives_the_reason_why_no_drafter_of_ours_is_used(served: Served) -> None:
    _, lines = await served.post("/api/chat", **CHAT)
    assert lines[-1]["speculation"]["reason"] == "upstream_engine"


async def test_an_error_upstream_is_the_answer(served: Served) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "fail"}]}
    assert await served.post("/api/chat", **body) == (500, [{"error": "out of cake"}])


async def test_a_client_that_leaves_cancels_the_request_upstream(served: Served) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "hang"}]}
    async with served.http.post("/api/chat", json=body) as reply:
        await reply.content.readline()
        reply.close()
    await served.server.left.wait()
    assert (await served.post("/api/chat", **CHAT))[0] == 200


@pytest.mark.parametrize(
    "path, fields, message",
    [
        ("/api/generate", {"prompt": "x", "raw": True}, "raw cannot be used"),
        ("/api/generate", {"prompt": "x", "_debug_render_only": True}, "rendered upstream"),
        ("/v1/messages/count_tokens", {"messages": CHAT["messages"]}, "counts no tokens"),
        ("/api/embed", {"input": "x"}, "does not support embeddings"),
    ],
)
async def test_what_the_engine_lacks_is_refused_by_name(
    served: Served, path: str, fields: dict[str, object], message: str
) -> None:
    status, [answer] = await served.post(path, model="parrot", **fields)
    assert status >= 400
    assert message in json.dumps(answer)
