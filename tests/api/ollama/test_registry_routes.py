"""`/api/pull`, `/api/push`, and the routes of Ollama's cloud."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from specd import core
from specd.errors import RegistryError, ShuttingDown
from tests.api.fakes import FakeRegistry, client

LAYER = f"sha256:{'a' * 64}"
LINES = (
    core.Progress(status="pulling manifest"),
    core.Progress(status="pulling aaaaaaaaaaaa", digest=LAYER, total=20),
    core.Progress(status="pulling aaaaaaaaaaaa", digest=LAYER, total=20, completed=20),
    core.Progress(status="success"),
)


async def asked(
    path: str, body: object, registry: FakeRegistry | None = None, method: str = "POST"
) -> tuple[int, str, str]:
    """Return status, content type and text."""
    data = body if isinstance(body, str) else json.dumps(body)
    async with client(registry=registry) as http, http.request(method, path, data=data) as reply:
        return reply.status, reply.headers["Content-Type"], await reply.text()


@pytest.mark.parametrize("verb", ["pull", "push"])
async def test_progress_is_lines_of_json(verb: str) -> None:
    registry = FakeRegistry(LINES)
    body = {"name": "hf.co/a/b:Q4_K_M", "insecure": True, "username": 1}
    status, kind, text = await asked(f"/api/{verb}", body, registry)
    assert (status, kind) == (200, "application/x-ndjson")
    assert text.splitlines() == [
        '{"status":"pulling manifest"}',
        f'{{"status":"pulling aaaaaaaaaaaa","digest":"{LAYER}","total":20}}',
        f'{{"status":"pulling aaaaaaaaaaaa","digest":"{LAYER}","total":20,"completed":20}}',
        '{"status":"success"}',
    ]
    assert registry.asked == [(verb, "hf.co/a/b:Q4_K_M", True)]


@pytest.mark.parametrize("verb", ["pull", "push"])
async def test_the_last_line_alone(verb: str) -> None:
    answer = await asked(f"/api/{verb}", {"model": "m", "stream": False}, FakeRegistry(LINES))
    assert answer == (200, "application/json; charset=utf-8", '{"status":"success"}')


@pytest.mark.contract("pull.unknown")
async def test_an_error_after_the_first_line_is_the_last() -> None:
    error = RegistryError("pull model manifest: file does not exist")
    status, _, text = await asked("/api/pull", {"model": "m"}, FakeRegistry((LINES[0], error)))
    assert status == 200
    assert text.splitlines()[1] == '{"error":"pull model manifest: file does not exist"}'


@pytest.mark.parametrize("script", [(RegistryError("no"),), (LINES[0], RegistryError("no"))])
async def test_an_error_without_a_stream_has_a_status(script: Any) -> None:
    body = {"model": "m", "stream": False}
    assert await asked("/api/pull", body, FakeRegistry(script)) == (
        500,
        "application/json; charset=utf-8",
        '{"error":"no"}',
    )


async def test_an_error_before_the_first_line_has_a_status() -> None:
    script = (ShuttingDown("the server is shutting down"),)
    status, _, text = await asked("/api/push", {"model": "m"}, FakeRegistry(script))
    assert (status, text) == (503, '{"error":"the server is shutting down"}')


@pytest.mark.contract("pull.names")
@pytest.mark.parametrize(
    "path,body,status,error",
    [
        ("/api/pull", "", 400, "missing request body"),
        ("/api/pull", {}, 400, "invalid model name"),
        ("/api/push", {}, 400, "model is required"),
        ("/api/pull", {"model": "a b"}, 400, "invalid model name"),
        ("/api/push", {"model": "a@b"}, 400, "invalid model name"),
        (
            "/api/pull",
            {"model": "x:local:cloud"},
            400,
            'use either :local or :cloud, not both: "x:local:cloud"',
        ),
        (
            "/api/pull",
            {"model": "x:cloud"},
            403,
            "ollama cloud is disabled: remote model is unavailable",
        ),
        (
            "/api/pull",
            {"model": "x", "insecure": 1},
            400,
            "json: cannot unmarshal number into Go struct field PullRequest.insecure of type bool",
        ),
    ],
)
async def test_refused_names(path: str, body: object, status: int, error: str) -> None:
    registry = FakeRegistry()
    answered, kind, text = await asked(path, body, registry)
    assert (answered, json.loads(text)) == (status, {"error": error})
    assert kind == "application/json; charset=utf-8"
    assert registry.asked == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_pull(stream: bool) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    class Endless(FakeRegistry):
        async def pull(self, model: str, /, *, insecure: bool) -> AsyncIterator[core.Progress]:
            try:
                yield LINES[0]
                begun.set()
                await asyncio.Event().wait()
            finally:
                left.set()

    async with client(registry=Endless()) as http:
        body = {"model": "m", "stream": stream}
        asking = asyncio.create_task(http.post("/api/pull", json=body))
        await begun.wait()
        asking.cancel()
        await asyncio.wait({asking})
        if not asking.cancelled():
            (await asking).close()
        await left.wait()


@pytest.mark.contract("routes.me", "routes.signout", "routes.recommendations", "routes.web")
@pytest.mark.parametrize(
    "method,path,status,answer",
    [
        ("POST", "/api/me", 503, {"error": "account unavailable"}),
        ("POST", "/api/signout", 401, {"error": "you are not currently signed in"}),
        ("DELETE", "/api/user/keys/c3No", 401, {"error": "you are not currently signed in"}),
        ("GET", "/api/experimental/model-recommendations", 200, {"recommendations": []}),
        (
            "POST",
            "/api/experimental/web_search",
            403,
            {"error": "ollama cloud is disabled: web search is unavailable"},
        ),
        (
            "POST",
            "/api/experimental/web_fetch",
            403,
            {"error": "ollama cloud is disabled: web fetch is unavailable"},
        ),
    ],
)
async def test_routes_of_the_cloud(method: str, path: str, status: int, answer: object) -> None:
    answered, kind, text = await asked(path, "", method=method)
    assert (answered, json.loads(text)) == (status, answer)
    assert kind == "application/json; charset=utf-8"
